"""What a VLN-CE checkpoint says about itself: the network's sizes and switches, and the body it was trained with.

Format: the experiment configuration of VLN-CE, which its trainers store beside the weights; fields that older
versions did not have take the value those versions worked with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlnbench.errors import UsageError
from vlnbench.interfaces import Conventions

Kind = Literal["cma", "seq2seq"]
Encoders = Literal["resnet50", "small"]
POLICIES: dict[str, Kind] = {"CMAPolicy": "cma", "Seq2SeqPolicy": "seq2seq"}

TOKENS, FEATURES = "instruction", "rxr_instruction"
"""The two sensors for instructions: tokens of R2R's vocabulary, BERT features of RxR."""
FEATURE_SIZE = 768
LARGEST = 1 << 16
"""No size in a network's config is above this; it keeps products of sizes in range."""
TRANSFORMS = ("ResizeShortestEdge", "CenterCropperPerSensor")


class Fields:
    """Typed look-ups in one node of a config; complaints name the file, the field and what was expected."""

    def __init__(self, values: Mapping[str, Any], where: str, path: str = "config") -> None:
        self._values = values
        self._where = where
        self._path = path

    def node(self, name: str) -> Fields:
        """A nested node; one that is absent counts as empty."""
        found = self._values.get(name, {})
        if not isinstance(found, dict):
            raise self.error(name, "a node with fields")
        return Fields(found, self._where, f"{self._path}.{name}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number of at most LARGEST."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise self.error(name, f"a whole number from 1 to {LARGEST}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            raise self.error(name, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "True or False")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the choices; the first where the field is absent."""
        value = self._get(name, choices[0])
        if value not in choices:
            raise self.error(name, " or ".join(choices))
        return str(value)

    def items(self, name: str) -> list[Any]:
        """A list; an absent one is empty."""
        value = self._get(name, ())
        if not isinstance(value, list | tuple):
            raise self.error(name, "a list")
        return list(value)

    def error(self, name: str, expected: str) -> UsageError:
        """A complaint about one field."""
        found = repr(self._values[name])[:60] if name in self._values else "nothing"
        return UsageError(f"{self._where}: {self._path}.{name}: expected {expected}, found {found}")

    def _get(self, name: str, default: Any) -> Any:
        return self._values.get(name, default)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sizes and switches of one network.

    `reads` is the sensor of the instruction. `text_size` is the LSTM's hidden size per direction, `state_size`
    that of the recurrent states. `rgb_width` and `depth_planes` are the channels of the first convolutions and
    `num_actions` the width of the action layer: released configs do not have them, the weights do. `encoders` are
    VLN-CE's ResNets, or small networks of our own (`agents.vlnce.encoders`).
    """

    kind: Kind = "cma"
    encoders: Encoders = "resnet50"
    reads: str = TOKENS
    vocab_size: int = 2504
    embedding_size: int = 50
    text_size: int = 128
    bidirectional: bool = True
    rgb_size: int = 256
    depth_size: int = 128
    state_size: int = 512
    num_actions: int = 4
    rgb_width: int = 64
    depth_planes: int = 32
    normalize_rgb: bool = False
    ablate_instruction: bool = False
    ablate_depth: bool = False
    ablate_rgb: bool = False
    use_prev_action: bool = False
    progress_monitor: bool = False
    progress_weight: float = 1.0
    tune_embeddings: bool = False
    tune_rgb: bool = False
    tune_depth: bool = False


@dataclass(frozen=True, slots=True)
class Views:
    """How frames become input: sizes in pixels, depth range in meters, and RxR's resizing.

    `shortest_edge`: frames are scaled so that their shorter side has this length, then cut to `rgb_crop` and
    `depth_crop` (height, width) around the middle; None: frames go in as they are. `halved`: frames of any size
    are taken; of their pixels those are kept that a camera with `frame` pixels would see, and of these the mean of
    every 2 x 2, with 256 levels of depth.
    """

    frame: tuple[int, int]
    depth_frame: tuple[int, int]
    depth_range_m: tuple[float, float]
    shortest_edge: int | None = None
    rgb_crop: tuple[int, int] = (224, 224)
    depth_crop: tuple[int, int] = (256, 256)
    halved: bool = False

    @property
    def inputs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of what the network reads, RGB and depth."""
        if self.shortest_edge is not None:
            return self.rgb_crop, self.depth_crop
        if not self.halved:
            return self.frame, self.depth_frame
        (height, width), (h, w) = self.frame, self.depth_frame
        return (height // 2, width // 2), (h // 2, w // 2)


@dataclass(frozen=True, slots=True)
class Config:
    """A checkpoint's whole config: its network, its views, the body it expects, and whether it samples actions.

    vocabulary: words of its own by number, from 2 on (0 is nothing, 1 an unknown word); empty: it reads the
    dataset's tokens.
    """

    network: NetworkConfig
    views: Views
    expects: Conventions
    samples: bool
    vocabulary: tuple[str, ...] = ()


def read_config(values: Any, where: str) -> Config:
    """Read the `config` of a checkpoint. Raises UsageError for one that is absent, wrong or not supported.

    VLN-CE evaluates its RxR models by sampling, its R2R models greedily unless EVAL.SAMPLE says otherwise.
    """
    if not isinstance(values, dict) or not isinstance(values.get("MODEL"), dict):
        raise UsageError(f"{where}: config: expected VLN-CE's settings with MODEL, which its trainers store there")
    config = Fields(values, where)
    network = _network(config.node("MODEL"))
    simulator = config.node("TASK_CONFIG").node("SIMULATOR")
    rxr = network.reads == FEATURES
    return Config(
        network=network,
        views=_views(config, simulator, rxr),
        expects=_expects(simulator, rxr),
        samples=rxr or config.node("EVAL").flag("SAMPLE"),
    )


def _network(model: Fields) -> NetworkConfig:
    kind = _kind(model)
    text, rgb, depth = (model.node(f"{name}_ENCODER") for name in ("INSTRUCTION", "RGB", "DEPTH"))
    state, progress = model.node("STATE_ENCODER"), model.node("PROGRESS_MONITOR")
    reads = text.choice("sensor_uuid", (TOKENS, FEATURES))
    text.choice("rnn_type", ("LSTM",))
    state.choice("rnn_type", ("GRU",))
    rgb.choice("cnn_type", ("TorchVisionResNet50",))
    depth.choice("cnn_type", ("VlnResnetDepthEncoder",))
    depth.choice("backbone", ("resnet50",))
    if model.node("CMA").flag("rcm_state_encoder"):
        raise model.node("CMA").error("rcm_state_encoder", "False")
    bidirectional = text.flag("bidirectional")
    if kind == "seq2seq" and bidirectional:
        raise text.error("bidirectional", "False for Seq2Seq")
    config = NetworkConfig(
        kind=kind,
        reads=reads,
        vocab_size=text.size("vocab_size", 2504),
        embedding_size=text.size("embedding_size"),
        text_size=text.size("hidden_size"),
        bidirectional=bidirectional,
        rgb_size=rgb.size("output_size"),
        depth_size=depth.size("output_size"),
        state_size=state.size("hidden_size"),
        normalize_rgb=model.flag("normalize_rgb"),
        ablate_instruction=model.flag("ablate_instruction"),
        ablate_depth=model.flag("ablate_depth"),
        ablate_rgb=model.flag("ablate_rgb"),
        use_prev_action=model.node("SEQ2SEQ").flag("use_prev_action"),
        progress_monitor=progress.flag("use"),
        progress_weight=progress.number("alpha", 1.0),
        tune_embeddings=text.flag("fine_tune_embeddings"),
        tune_rgb=rgb.flag("trainable"),
        tune_depth=depth.flag("trainable"),
    )
    if reads == FEATURES and config.embedding_size != FEATURE_SIZE:
        raise text.error("embedding_size", f"{FEATURE_SIZE}, the length of RxR's BERT features")
    half = config.state_size // 2
    for encoder, size in ((rgb, config.rgb_size), (depth, config.depth_size)):
        if kind == "cma" and (config.state_size % 2 or size > half):
            raise encoder.error("output_size", f"at most half of an even STATE_ENCODER.hidden_size ({half})")
    return config


def _kind(model: Fields) -> Kind:
    """By the policy's name; configs from before there was one say `CMA.use`."""
    if "policy_name" not in model:
        return "cma" if model.node("CMA").flag("use") else "seq2seq"
    return POLICIES[model.choice("policy_name", tuple(POLICIES))]


def _views(config: Fields, simulator: Fields, rxr: bool) -> Views:
    rgb, depth = simulator.node("RGB_SENSOR"), simulator.node("DEPTH_SENSOR")
    frame = (rgb.size("HEIGHT", 480 if rxr else 224), rgb.size("WIDTH", 640 if rxr else 224))
    depth_frame = (depth.size("HEIGHT", 480 if rxr else 256), depth.size("WIDTH", 640 if rxr else 256))
    nearest, farthest = (
        depth.number("MIN_DEPTH", 0.5 if rxr else 0.0),
        depth.number("MAX_DEPTH", 5.0 if rxr else 10),
    )
    if not 0 <= nearest < farthest or not depth.flag("NORMALIZE_DEPTH", True):
        raise depth.error("MAX_DEPTH", "meters above MIN_DEPTH, with NORMALIZE_DEPTH True")
    transforms = config.node("RL").node("POLICY").node("OBS_TRANSFORMS")
    usual = list(TRANSFORMS) if rxr else []
    enabled = transforms.items("ENABLED_TRANSFORMS") if "ENABLED_TRANSFORMS" in transforms else usual
    if not enabled:
        return Views(frame, depth_frame, (nearest, farthest))
    if enabled != list(TRANSFORMS):
        raise transforms.error("ENABLED_TRANSFORMS", f"none or {', '.join(TRANSFORMS)}")
    edge = transforms.node("RESIZE_SHORTEST_EDGE").size("SIZE", 256)
    crops = _crops(transforms.node("CENTER_CROPPER_PER_SENSOR"))
    rgb_crop, depth_crop = crops.get("rgb", (224, 224)), crops.get("depth", (256, 256))
    return Views(frame, depth_frame, (nearest, farthest), edge, rgb_crop, depth_crop)


def _crops(cropper: Fields) -> dict[str, tuple[int, int]]:
    crops: dict[str, tuple[int, int]] = {}
    for item in cropper.items("SENSOR_CROPS"):
        match item:
            case ["rgb" | "depth" as sensor, [int(height), int(width)]] if min(height, width) >= 1:
                crops[sensor] = (height, width)
            case _:
                raise cropper.error("SENSOR_CROPS", "[sensor, [height, width]] for rgb and depth")
    return crops


def _expects(simulator: Fields, rxr: bool) -> Conventions:
    """The camera and the steps that the network was trained with; VLN-CE's defaults where the config has none."""
    rgb = simulator.node("RGB_SENSOR")
    heights = rgb.items("POSITION") or [0.0, 0.88 if rxr else 1.25, 0.0]
    if len(heights) != 3 or not all(isinstance(value, int | float) for value in heights):
        raise rgb.error("POSITION", "three numbers")
    return Conventions(
        width=rgb.size("WIDTH", 640 if rxr else 224),
        height=rgb.size("HEIGHT", 480 if rxr else 224),
        hfov=rgb.number("HFOV", 79.0 if rxr else 90.0),
        camera_height_m=float(heights[1]),
        forward_m=simulator.number("FORWARD_STEP_SIZE", 0.25),
        turn_deg=simulator.number("TURN_ANGLE", 30.0 if rxr else 15.0),
    )

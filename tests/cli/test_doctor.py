from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.doctor import check_cache
from tests.runs import nine_episodes, write_dataset
from vlnbench.cli import checks, doctor, gpu_checks, main
from vlnbench.cli.checks import Package, run_checks
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.util import machine
from vlnbench.util.findings import Finding, ProbeError, begun, probe

ROOT = Path(__file__).parents[2]
NUMPY = Package("numpy", "import numpy", "FAIL", "everything")


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of which only quick things are checked; returns an empty data root."""
    monkeypatch.setattr(checks, "PACKAGES", (NUMPY,))
    monkeypatch.setattr(checks, "check_cuda", lambda: iter(()))
    monkeypatch.setattr(checks, "FREE_FAIL_GIB", 0.0)
    return tmp_path / "data"


def lines(text: str) -> dict[str, tuple[str, str]]:
    """Name -> (level, rest) of each line of the report."""
    found = (line.split(maxsplit=1) for line in text.splitlines())
    return {rest[:16].strip(): (level, rest[16:].strip()) for level, rest in found}


def levels(findings) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def test_a_healthy_machine_exits_with_zero(healthy: Path, capsys) -> None:
    assert main(["doctor", "--data-root", str(healthy)]) == 0
    shown = lines(capsys.readouterr().out)
    assert {level for level, _ in shown.values()} <= {"ok", "warn"}
    for name in ("Python", "numpy", "package agents", "package envs", "simulator", "EGL", "cache", "disk (data)"):
        assert name in shown
    assert shown["data houses-r2r"][1].endswith("the first evaluation generates it")
    assert shown["data r2r-ce"][0] == "warn"


def test_gpu_evidence_wants_a_gpu(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["doctor", "--gpu-evidence", str(tmp_path / "out")]) == 2
    assert "no CUDA device: PyTorch sees none here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_gpu_evidence_wants_a_checkout(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "site-packages" / "vlnbench" / "cli" / "doctor.py"))
    assert main(["doctor", "--gpu-evidence", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its measurements come with a checkout, which" in line
    assert not (tmp_path / "out").exists()


def doctor_beside(broken: dict[str, str], tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Report of a process before whose real packages lie broken ones; it must end with exit code 2."""
    for name, code in broken.items():
        (tmp_path / "path" / name).mkdir(parents=True)
        (tmp_path / "path" / name / "__init__.py").write_text(code)
    command = [sys.executable, "-c", "import sys; from vlnbench.cli import main; sys.exit(main())", "doctor"]
    path = f"{tmp_path / 'path'}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "VLNBENCH_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert "checks failed; see the lines that begin with FAIL" in result.stderr
    return lines(result.stdout)


def test_broken_packages_are_failures_with_advice(tmp_path: Path) -> None:
    broken = {
        "cv2": "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')",
        "torch": "import os; os.abort()",
        "transformers": "raise RuntimeError('two\\nlines')",
        "numba": "raise ImportError('numba needs another numpy')",
        "agents": "",
    }
    shown = doctor_beside(broken, tmp_path)
    expected = {
        "torch": "crashed with signal 6",
        "transformers": "lines",
        "numba": "numba needs another numpy",
        "package agents": "is not vlnbench's",
        "CUDA": "the check itself broke (ProbeError: crashed with signal 6)",
        "cache": "the check itself broke (ImportError: numba needs another numpy)",
    }
    for name, part in expected.items():
        assert shown[name][0] == "FAIL", (name, shown[name])
        assert part in shown[name][1], (name, shown[name])
    assert shown["opencv-python"][0] == "warn"
    assert "opencv-python-headless==4.11.0.86`, which needs no libGL" in shown["opencv-python"][1]
    assert {shown[name][0] for name in ("Python", "numpy", "package envs", "data houses-r2r")} == {"ok"}
    assert {"disk (data)", "data r2r-ce"} <= shown.keys()


def test_even_a_broken_numpy_leaves_the_other_checks_alone(tmp_path: Path) -> None:
    broken = {"numpy": "def broken(:"} | dict.fromkeys(("cv2", "torch", "transformers", "habitat", "numba"), "")
    shown = doctor_beside(broken, tmp_path)
    assert shown["numpy"][0] == shown["cache"][0] == "FAIL"
    assert "SyntaxError" in shown["numpy"][1]
    assert {shown[name][0] for name in ("Python", "torch", "transformers", "simulator", "EGL")} == {"ok"}


def test_a_check_that_raises_is_a_finding_and_the_others_go_on(healthy: Path, monkeypatch) -> None:
    def broken() -> None:
        raise KeyError("a\nb")

    monkeypatch.setattr(checks, "check_own_packages", broken)
    findings = {finding.name: finding for finding in run_checks(healthy)}
    assert findings["own packages"] == Finding(
        "FAIL", "own packages", "the check itself broke (KeyError: 'a\\nb')"
    )
    assert "simulator" in findings


def test_absent_packages_are_as_bad_as_their_use(monkeypatch) -> None:
    for level, expected in (("FAIL", "FAIL"), ("warn", "warn"), ("ok", "ok")):
        (finding,) = checks.check_package(Package("no-such-thing", "import nothing", level, "dreams"))
        assert finding.level == expected
        assert "not installed; needed for dreams" in finding.detail


def test_a_version_outside_of_the_asked_range_is_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(checks, "installed_version", lambda name: "1.20.3")
    (finding,) = checks.check_package(NUMPY)
    assert finding.level == "warn"
    assert finding.detail.startswith("1.20.3 is outside of ")
    assert "pip install 'numpy" in finding.advice


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("import os; os.abort()", "crashed with signal 6"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_probes_survive_what_they_run(code: str, reason: str) -> None:
    assert probe("print('chatter'); print(41 + 1)") == "42"
    with pytest.raises(ProbeError, match=reason):
        probe(code, timeout_s=1.0 if "sleep" in code else 60.0)


def test_statements_that_were_begun_answer_one_by_one_and_outlive_what_crashes() -> None:
    chain = ["print(1)", "import os; os.abort()", "x = 1; print('last\\n2')", "raise ValueError('no')", "print(x)"]
    with begun([chain, ["print('beside')"]]):
        assert [probe(chain[0]), probe(chain[2]), probe("print('beside')")] == ["1", "2", "beside"]
        for code, reason in (
            (chain[1], "crashed with signal 6"),
            (chain[3], "ValueError: no"),
            (chain[4], "NameError: name 'x' is not defined"),
        ):
            with pytest.raises(ProbeError, match=reason):
                probe(code)
    assert probe("print(3)") == "3"


def test_gpus_are_named_with_their_memory(tmp_path: Path, monkeypatch) -> None:
    fake = """
from types import SimpleNamespace as S
class cuda:
    is_available = lambda: {available}
    device_count = lambda: 2
    get_device_name = lambda i: "Card " + str(i)
    get_device_properties = lambda i: S(total_memory=80 * 2**30)
    get_device_capability = lambda i: {capability}
    mem_get_info = lambda i: (79 * 2**30, 80 * 2**30)
    nccl = S(version=lambda: (2, 27, 3))
    get_arch_list = lambda: ["sm_80", "{architecture}"]
version = S(cuda="12.8")
distributed = S(is_available=lambda: True, is_nccl_available=lambda: {nccl})
"""

    def card(available: bool = True, architecture: str = "sm_90", **more: object) -> list[Finding]:
        told = {"capability": (9, 0), "nccl": True, **more}
        (tmp_path / "torch.py").write_text(fake.format(available=available, architecture=architecture, **told))
        return list(gpu_checks.check_cuda())

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # two fakes of one second and size would pass for one
    monkeypatch.setattr(gpu_checks, "installed_version", {"torch": "2.9", "nvidia-ml-py": "13", "triton": "3"}.get)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): raise OSError('no driver')")
    assert list(map(str, card())) == [
        *(
            f"ok    CUDA device {i}     Card {i}, 80.0 GiB, 79.0 free, sm_90 (torch for CUDA 12.8), bfloat16"
            for i in range(2)
        ),
        "ok    flash_attn        not installed: attention is torch's own (SDPA) "
        "(`pip install flash-attn --no-build-isolation`)",
        "ok    bitsandbytes      not installed: no --quantize, no --optimizer adamw8bit "
        "(`pip install 'vlnbench[gpu]'`)",
        "warn  NVML              13 does not work here (OSError: no driver): memory of the whole process is not "
        "recorded, only what torch counts; reinstall it",
        "warn  triton            3 without a C compiler: no --compile; install gcc or clang, or set CC",
        "ok    NCCL              2.27.3",
    ]
    (tmp_path / "cc").touch(mode=0o755)
    (tmp_path / "pynvml.py").write_text("nvmlInit = nvmlDeviceGetCount = lambda: 1")
    turing = {each.name: each for each in card(capability=(7, 5), architecture="sm_75", nccl=False)}
    assert turing["CUDA device 0"].level == "warn"
    assert turing["CUDA device 0"].advice == "give --dtype float16 or float32"
    assert [turing[name].level for name in ("NVML", "triton", "NCCL")] == ["ok", "ok", "warn"]
    for finding in card(architecture="sm_120")[:2]:
        assert finding.level == "FAIL"
        assert "for which it has no code, only for sm_80, sm_120" in finding.detail
    card(available=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert levels(gpu_checks.check_cuda()) == {"CUDA": "warn"}
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    (finding,) = gpu_checks.check_cuda()
    assert "sees no device though there is one" in finding.detail


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), ["sm_75", "sm_80"], True),  # machine code runs on later cards of the same generation
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_80", "sm_90"], False),  # an RTX 50 card and a build of 2024
        ((12, 0), ["sm_80", "sm_90", "compute_90"], True),  # the driver translates
        ((12, 0), ["sm_100", "sm_120"], True),
        ((12, 1), ["sm_120f"], True),
        ((10, 3), ["sm_100a"], False),  # for one architecture alone
        ((9, 0), ["sm_90a"], True),
        ((7, 5), ["sm_80", "compute_80"], False),
        ((9, 4), ["gfx942"], True),  # of another maker: nothing is said
    ],
)
def test_builds_and_cards(capability: tuple[int, int], architectures: list[str], runs: bool) -> None:
    assert gpu_checks.has_code_for(*capability, architectures) is runs


def test_a_cache_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "file" / "cache"))
    (finding,) = check_cache()
    assert (finding.level, finding.advice) == ("FAIL", "set VLNBENCH_CACHE")


@pytest.mark.parametrize(("free", "level"), [(0.5, "FAIL"), (5.0, "warn"), (500.0, "ok")])
def test_little_space_is_reported(tmp_path: Path, monkeypatch, free: float, level: str) -> None:
    from types import SimpleNamespace

    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 2**30))
    assert set(levels(checks.check_disk(tmp_path / "not" / "there")).values()) == {level}


def test_data_are_counted_and_missing_scenes_named(tmp_path: Path) -> None:
    houses = get_benchmark("houses-r2r")
    write_dataset(tmp_path)
    (finding,) = checks.check_benchmark(houses, tmp_path)
    assert (finding.level, finding.detail) == ("warn", "val_unseen 9 episodes with 0 of 3 scenes")
    assert finding.advice.startswith("to use it, add the scenes of val_unseen in")
    for episode in nine_episodes():
        path = tmp_path / "scene_datasets" / episode.scene_id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (finding,) = checks.check_benchmark(houses, tmp_path)
    assert (finding.level, finding.detail) == ("ok", "val_unseen 9 episodes with 3 of 3 scenes")


def test_a_broken_episode_file_is_a_failure(healthy: Path) -> None:
    path = healthy / "datasets" / "houses_r2r" / "val_seen" / "val_seen.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not gzip")
    finding = next(finding for finding in run_checks(healthy) if finding.name == "data houses-r2r")
    assert finding.level == "FAIL"
    assert str(path) in finding.detail


def test_the_real_data_are_found(shared: Path) -> None:
    (finding,) = checks.check_benchmark(get_benchmark("r2r-ce"), shared / "data")
    assert finding.detail.startswith(
        "train, val_seen 778 episodes with 53 of 53 scenes, val_unseen 1839 episodes with 0 of 11 scenes, test"
    )

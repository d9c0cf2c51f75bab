"""Builds containers/Dockerfile without Docker and evaluates in the result.

A bare Debian is made with mmdebstrap (by an ordinary user, who has ids in /etc/subuid), and the Dockerfile's steps
are carried out in it, each as the user and in the folder that it says. Takes minutes, and downloads what the
Dockerfile downloads; pip's settings of this machine (mirrors, certificates) hold inside as well.

python -m tests.containers.bare_root --wheel dist/vlnbench-0.1.0-py3-none-any.whl --data-root DIR
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "containers" / "Dockerfile"
SUITES = {"debian:bookworm-slim": "bookworm"}
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Step:
    """An instruction of a Dockerfile: its name in capitals, and the rest of its lines as one."""

    name: str
    text: str


def read_steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = lines.replace("\\\n", " ")
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def commands(steps: Sequence[Step], run: Sequence[str]) -> Iterator[str]:
    """Shell lines that carry the steps out in the root `$1`, and then `run` behind the entry point.

    Raises ValueError for an instruction that this does not know.
    """
    user, folder, entry = "root", "/", ""
    variables: dict[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **PIP}
    arguments: dict[str, str] = {}
    for step in steps:
        if step.name == "USER":
            user = step.text
        elif step.name == "WORKDIR":
            folder = step.text
        elif step.name in ("ENV", "ARG"):
            name, _, value = step.text.partition("=")
            (variables if step.name == "ENV" else arguments)[name] = shlex.split(value)[0]
        elif step.name == "COPY":
            source, target = step.text.split()
            yield f'mkdir -p "$1{target}" && cp "$WHEEL" "$1{target}" # {source}'
        elif step.name == "RUN":
            yield _inside(step.text, user, folder, {**variables, **arguments})
        elif step.name == "ENTRYPOINT":
            entry = " ".join(re.findall(r'"([^"]+)"', step.text))
        elif step.name not in ("FROM", "CMD"):
            raise ValueError(f"instruction {step.name} is not known here")
    yield _inside(shlex.join([*entry.split(), *run]), user, folder, variables)


def _inside(text: str, user: str, folder: str, variables: dict[str, str]) -> str:
    home = "/root" if user == "root" else f"/home/{user}"
    given = [f"{name}={value}" for name, value in {**variables, "HOME": home}.items()]
    command = ["chroot", f"--userspec={user}", "ROOT", "env", "-i", *given, "sh", "-c", f"cd {folder} && {text}"]
    return shlex.join(command).replace(" ROOT ", ' "$1" ', 1)


def _shown(source: Path, target: Path | None = None) -> list[str]:
    """Shell lines that show a folder or file of this machine in the root `$1`."""
    target = target or source
    if source.is_dir():
        return [f'mkdir -p "$1{target}" && mount --rbind {shlex.quote(str(source.resolve()))} "$1{target}"']
    return [f'mkdir -p "$1{target.parent}" && cp -L {shlex.quote(str(source))} "$1{target}"']


def build(wheel: Path, data_root: Path | None, run: Sequence[str], binds: Sequence[Path]) -> int:
    """Carry everything out; returns the exit code. binds: folders seen inside at the same place."""
    steps = read_steps(DOCKERFILE.read_text(encoding="utf-8"))
    (base,) = (step.text for step in steps if step.name == "FROM")
    early = ["set -eux", f"WHEEL={shlex.quote(str(wheel.resolve()))}", *_shown(Path("/etc/resolv.conf"))]
    late = [*_shown(CERTIFICATES), *(line for path in binds for line in _shown(path))]  # after apt's certificates
    if data_root is not None:
        late += _shown(data_root, Path("/work/data"))
    made = list(commands(steps, run))
    where = next(i for i, line in enumerate(made) if "useradd" in line) + 1
    lines = [*early, *made[:where], *late, *made[where:]]
    with tempfile.TemporaryDirectory(prefix="vlnbench-root-") as folder:
        script = Path(folder, "steps.sh")
        script.write_text("\n".join([*lines, 'echo the root is $(du -sxm "$1" | cut -f1) MB', ""]))
        os.chmod(folder, 0o755)  # the steps run under another id
        command = ["mmdebstrap", "--variant=minbase", "--format=null", f'--customize-hook=sh {script} "$1"']
        return subprocess.run([*command, SUITES[base], "/dev/null"], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument(
        "--data-root", type=Path, help="houses that are there already; default: they are generated"
    )
    parser.add_argument(
        "--bind", type=Path, nargs="*", default=[], help="folders of pip's settings, /opt/wheels say"
    )
    parser.add_argument("--run", default="eval --agent read-and-look --episodes 4 --out /tmp/run")
    given = parser.parse_args()
    return build(given.wheel, given.data_root, shlex.split(given.run), given.bind)


if __name__ == "__main__":
    raise SystemExit(main())

"""Copies of an agent, one for each episode, so that episodes which run side by side cannot mix.

Whoever writes an agent for one episode keeps what they like in `self`. A shallow copy would leave lists, arrays
and modules of `self` common to all episodes, whose results would then depend on how many run at once.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeVar

from vlnbench.errors import UsageError

Kept = TypeVar("Kept")

LARGE_BYTES = 2**20
"""Buffers of this size are shared like parameters: those of quantized networks are their weights."""
_NO_STATE = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
)


class Copies:
    """Makes copies of `agent` as it was made.

    A copy has its own of everything in `self` and of what its classes define, down to the last list. Shared are
    only what `agent.shared` names, parameters and large buffers of torch modules, and the tables of tokenizers.
    Weights that are written to all the same are found by `check`.
    """

    def __init__(self, agent: Any, base: type, left_out: Collection[str]) -> None:
        """base: the class above which nothing is the user's own. left_out: attributes that copies lack."""
        self._agent, self._left_out = agent, left_out
        names = (agent.shared,) if isinstance(agent.shared, str) else agent.shared  # ("client") is no tuple
        if missing := [name for name in names if not hasattr(agent, name)]:
            raise UsageError(f"agent {type(agent).__name__}: shared names {missing[0]!r}, which is not in self")
        self._shared = [getattr(agent, name) for name in names]
        found = list(_reachable(self._given()))
        self._weights = [weight for each in found for weight in _weights(each)]
        self._versions = [each._version for each in self._weights]
        self._tables = [each for each in found if _is_table(each)]
        own = [each for each in type(agent).__mro__ if issubclass(each, base) and each is not base]
        names = {name for each in own for name in vars(each)}
        self._of_class = sorted(name for name in names if not name.startswith(("__", "_abc_")))

    def new(self) -> Any:
        """A copy for an episode. Raises UsageError for what cannot be copied."""
        agent, made = self._agent, object.__new__(type(self._agent))
        memo: dict[int, Any] = {id(agent): made}
        memo |= {id(each): each for each in (*self._weights, *self._tables)}
        memo |= {id(value): value for value in self._shared}
        given = self._given()
        for name in (*given, *(each for each in self._of_class if each not in given)):
            value = given[name] if name in given else getattr(type(agent), name)
            if name in given or not hasattr(type(value), "__get__"):
                vars(made)[name] = _copied(agent, name, value, memo)
        return made

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._agent).items() if name not in self._left_out}

    def check(self) -> None:
        """Raise UsageError if shared weights have been written to since the agent was made."""
        for each, version in zip(self._weights, self._versions, strict=True):
            if each._version != version:
                raise UsageError(
                    f"agent {type(self._agent).__name__}: a tensor {tuple(each.shape)} of a module in self was "
                    "changed by an episode, and all that run at once share it; let begin() copy what an episode "
                    "changes: self.x = copy.deepcopy(self.x)"
                )


def _copied(agent: Any, name: str, value: Kept, memo: dict[int, Any]) -> Kept:
    try:
        if type(value).__name__ == "OptimizedModule" and id(value) not in memo:
            raise TypeError("it is compiled, and a copy would be compiled anew")
        return copy.deepcopy(value, memo)
    except UsageError:
        raise
    except Exception as error:  # whatever a class of the user's raises
        raise UsageError(
            f"agent {type(agent).__name__}: self.{name} cannot be copied for each episode ({error}); make it in "
            f"begin(), or say shared = ({name!r},) in the class if episodes may share it because it never changes"
        ) from error


def _reachable(root: Any) -> Iterator[Any]:
    """Everything that is found from an object, without what holds no state of an agent."""
    if "torch" not in sys.modules and "tokenizers" not in sys.modules:
        return
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, _NO_STATE):
            seen.add(id(found))
            yield found
            waiting += gc.get_referents(found)


def _weights(found: Any) -> Iterator[Any]:
    """Tensors that are shared, of a module alone. Those of inference mode count no changes and are copied."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(found, torch.nn.Module):
        tensors = (*found._parameters.values(), *(each for each in found._buffers.values() if _is_large(each)))
        yield from (each for each in tensors if each is not None and not each.is_inference())


def _is_large(buffer: Any) -> bool:
    return buffer is not None and buffer.nbytes >= LARGE_BYTES


def _is_table(found: Any) -> bool:
    tokenizers = sys.modules.get("tokenizers")
    return tokenizers is not None and isinstance(found, tokenizers.Tokenizer)

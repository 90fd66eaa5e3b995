"""A mapping that is shared while it is changed: a copy costs what has changed, not what there is.

    Overlay ──copy──► another on the same base; what is changed lies over it

Once much lies over it, both are made one. Who has a copy sees none of what is changed in another.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    ValuesView,
)
from typing import Any, TypeVar, overload

MAX_OVER = 1000
"""Changes on top of a base."""
_GONE = object()

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Overlay(MutableMapping[K, V]):
    __slots__ = ("_base", "_count", "_over")

    def __init__(self, given: Mapping[K, V] | None = None) -> None:
        self._base: dict[Any, Any] = dict(given or {})
        """Shared: never modify it."""
        self._over: dict[Any, Any] = {}
        self._count = len(self._base)

    def copy(self) -> Overlay[K, V]:
        copy = Overlay[K, V]()
        if len(self._over) > MAX_OVER:
            copy._base = self._whole()
        else:
            copy._base, copy._over = self._base, self._over.copy()
        copy._count = self._count
        return copy

    def __getitem__(self, key: K) -> V:
        found: V = self._found(key)
        if found is _GONE:
            raise KeyError(key)
        return found

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V | D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        over = self._over  # As _found: each check of a client that is new asks for all its levels.
        found = over[key] if key in over else self._base.get(key, _GONE)
        return default if found is _GONE else found

    def strangers(self) -> tuple[Callable[[Iterable[K]], bool], Callable[[Iterable[K]], bool]]:
        """Both are True where none of some keys is here, or was: for a path that is too hot for a
        call in Python. They hold until a key is added."""
        return self._base.keys().isdisjoint, self._over.keys().isdisjoint

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not _GONE

    def __setitem__(self, key: K, value: V) -> None:
        self._count += self._found(key) is _GONE
        self._over[key] = value

    def __delitem__(self, key: K) -> None:
        if self._found(key) is _GONE:
            raise KeyError(key)
        self._count -= 1
        self._over[key] = _GONE

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return iter(self._whole())

    def items(self) -> ItemsView[K, V]:
        return self._whole().items()

    def values(self) -> ValuesView[V]:
        return self._whole().values()

    def _found(self, key: object) -> Any:
        over = self._over
        return over[key] if key in over else self._base.get(key, _GONE)

    def _whole(self) -> dict[K, V]:
        if not self._over:
            return self._base
        found = {**self._base, **self._over}
        for key, value in self._over.items():
            if value is _GONE:
                del found[key]
        return found

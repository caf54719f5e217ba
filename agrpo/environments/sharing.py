"""What instances of an environment share and may change: the usual way in which one rollout comes to see another one's state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from typing import Any


def shared_by_class(cls: type[Any]) -> list[str]:
    """Attributes of the class that every instance could change. One in capitals is meant as a constant."""
    return sorted({name for owner in cls.__mro__[:-1] for name in _mutable(vars(owner))})


def shared_by(instance: object, other: object) -> list[str]:
    """Attributes of two instances that are one object, such as a default argument: `def __init__(self, seen=[])`."""
    others = _attributes(other)
    return sorted(name for name, value in _mutable(_attributes(instance)).items() if others.get(name) is value)


def _mutable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (MutableSequence, MutableMapping, MutableSet)
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(value, kinds) and not name.startswith("__") and not name.isupper()
    }


def _attributes(instance: object) -> Mapping[str, Any]:
    return getattr(instance, "__dict__", {})

"""The index: a static simple repository on disk, the one place of finished wheels."""

from builders.index.store import Index, Published
from resolver.errors import NameTakenError

__all__ = ["Index", "NameTakenError", "Published"]

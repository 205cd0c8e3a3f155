"""The index: a static simple repository of finished wheels."""

from builders.index.repository import Index, Published

__all__ = ["Index", "Published"]

"""Package indexes as the resolver reads them: fetched, cached, offline."""

from builders.index_client.client import FRESH_FOR, IndexClient

__all__ = ["FRESH_FOR", "IndexClient"]

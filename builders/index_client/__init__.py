"""Package indexes as the resolver reads them: fetched, cached, offline."""

from builders.index_client.client import FRESH_FOR, IndexClient
from builders.index_client.direct import WithDirectReferences

__all__ = ["FRESH_FOR", "IndexClient", "WithDirectReferences"]

"""The graph of fromager (https://github.com/python-wheel-build/fromager), another builder of wheels.

Its ``graph.json`` maps ``name==version`` to a distribution: ``download_url``, ``pre_built``,
``version``, ``canonicalized_name``, ``constraint`` and ``edges``; an edge has the ``key`` of what is
needed, the requirement ``req`` and ``req_type``: ``toplevel``, ``install``, ``build-system``,
``build-backend`` or ``build-sdist``. The key of the root is empty. As of ``dependency_graph.py`` in
fromager 0.77.0 and at commit cf4dc21be367.
"""

ROOT = ""
"""Key and name of the node whose edges are what was asked for."""

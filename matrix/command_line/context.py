"""The input of a command: its options, and the objects created from them."""

from __future__ import annotations

import argparse
import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.constants import LOCK_FILE
from matrix.input.settings import Settings, in_project, load_catalog, merge, options_of, read_settings
from matrix.show.console import Console
from resolver.versions import join_words

if TYPE_CHECKING:
    from matrix.input.inputs import Inputs
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe, SiteVariable
    from resolver.model import Conflict, Request, Resolution


class Context:
    """The options of a command and the objects created from them, each once and only when needed."""

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args = args
        self.console = console

    def with_options(self, **changes: object) -> Context:
        """Return a context with changed options, without the objects created from the present ones."""
        return Context(argparse.Namespace(**{**vars(self.args), **changes}), self.console)

    def with_settings(self, **changes: object) -> Context:
        """Return a context with changed settings, without the objects created from the present ones."""
        context = self.with_options()
        context.settings = msgspec.structs.replace(self.settings, **changes)
        return context

    def with_lock(self, lock: Resolution) -> Context:
        """Return a context with a lock that need not be stored."""
        context = self.with_options()
        context.lock = lock
        return context

    @cached_property
    def settings(self) -> Settings:
        """The settings in force; options take precedence."""
        options = options_of(self.args)
        is_api = getattr(self.args, "of_api", False)
        settings = merge(Settings(), options) if is_api else read_settings(options)
        if settings.date and settings.date > self.today:
            self.console.warning(
                f"{settings.date} is in the future. The answer uses what is known on {self.today}."
            )
        return settings

    @cached_property
    def catalog(self) -> Catalog:
        """The shipped facts with the overlays that the settings name."""
        return load_catalog(self.settings)

    @cached_property
    def catalog_with_image(self) -> Catalog:
        """`catalog` with the requested base image, if that is a file; this may start a container."""
        if not self.settings.base_image:
            return self.catalog
        from builders.containers.inspection import with_inspected_image

        with self.console.task("inspect the base image"):
            return with_inspected_image(self.catalog, self.settings.base_image)

    @cached_property
    def today(self) -> datetime.date:
        """The current day in UTC."""
        return datetime.datetime.now(tz=datetime.UTC).date()

    @cached_property
    def inputs(self) -> Inputs:
        """The requirements that the settings name, with those in files; prints warnings about the files."""
        from matrix.input.inputs import read_inputs

        inputs = read_inputs(self.settings)
        for warning in inputs.warnings:
            self.console.warning(warning)
        return inputs

    def request(self) -> Request:
        """Return the request that the settings describe; warn once if it is not for this machine's site."""
        from builders.machine.cluster import cluster_name
        from matrix.input.request import make_request
        from resolver.model import Notice

        request = make_request(self.settings, self.catalog_with_image, self.today, self.inputs)
        cluster, site = cluster_name(), request.target.site
        here = [row.name for row in self.catalog.site.values() if cluster and row.cluster == cluster]
        text = (
            f"This machine belongs to the cluster {cluster}, but the answer is for {site}. Use --site "
            f"{join_words(here, joiner='or')}, or write `site` into ~/.config/matrix/matrix.toml."
        )
        warning = Notice("other-site", "", text, f"this is {cluster}, the answer is for {site}: use --site")
        if here and site not in {*here, "local"} and warning.marked not in self.console.warnings:
            self.console.warning(warning)
        return request

    def resolve(
        self, earlier: Resolution | None = None, request: Request | None = None
    ) -> Resolution | Conflict:
        """Resolve a request, by default that of the settings; see `matrix.api.resolve_settings`."""
        from matrix.api import resolve_settings

        return resolve_settings(
            self.settings,
            self.catalog_with_image,
            self.today,
            self.inputs,
            request=request or self.request(),
            earlier=earlier,
            reporter=self.console,
        )

    @property
    def lock_path(self) -> Path:
        """The lock that ``--lock`` names, else ``matrix.lock``."""
        path: Path | None = self.args.lock
        return path or in_project(LOCK_FILE)

    @property
    def has_lock(self) -> bool:
        """Whether there is a lock: `with_lock`, ``--lock`` (which must then exist), or ``matrix.lock``."""
        if "lock" in vars(self):
            return True
        # The default is recognized by identity: `--lock matrix.lock` names a file that must exist.
        lock = in_project(LOCK_FILE)
        return (self.args.lock is not None and self.args.lock is not lock) or lock.exists()

    @cached_property
    def lock(self) -> Resolution:
        """The lock."""
        from matrix.input.locking import read_lock

        return read_lock(self.lock_path)

    def run_variables(self) -> list[SiteVariable]:
        """Return the variables of the site, and those that packages built from the lock need at run time."""
        from resolver.facts.schema import SiteVariable

        site = self.lock.target.site
        versions = {pick.name: pick.version for pick in self.lock.picks}
        return self.catalog_of_lock.variables_of(site, self.today, versions) + [
            SiteVariable(
                site=site,
                name=name,
                value=value,
                reason=f"{recipe.package} needs this variable at run time",
                status=recipe.status,
                source=recipe.source,
            )
            for recipe in built_recipes(self.lock, self.catalog_of_lock)
            for name, value in recipe.run_environment.items()
        ]

    @cached_property
    def catalog_of_lock(self) -> Catalog:
        """The facts that the lock was resolved with, and those that the settings name."""
        from matrix.input.locking import catalog_of

        return catalog_of(self.lock, self.lock_path, self.settings)


def built_recipes(lock: Resolution, catalog: Catalog) -> list[Recipe]:
    """Return the recipes of the distributions that a lock builds."""
    recipes = []
    for pick in lock.built():
        release = catalog.release.get((pick.name, pick.version, pick.variant))
        recipe = catalog.recipe_for(release, lock.target.backend) if release else None
        if recipe is not None:
            recipes.append(recipe)
    return recipes

"""A module of rewards that cannot be imported."""

import no_such_package_anywhere  # noqa: F401

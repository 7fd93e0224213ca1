"""Print the lock: the exact version of every distribution in this environment but Steersman itself.

Local version labels (`2.13.0+cpu`) are cut, so that the lock names the release and the machine's pip
configuration decides which build of it to take.
"""

from importlib import metadata

NOT_LOCKED = {"pip", "setuptools", "steersman", "wheel"}

versions = {
    distribution.metadata["Name"].lower().replace("_", "-"): distribution.version.partition("+")[0]
    for distribution in metadata.distributions()
}
print("# Made by `make lock`. Exact versions of everything the demo and the tests install.")  # noqa: T201
for name in sorted(versions.keys() - NOT_LOCKED):
    print(f"{name}=={versions[name]}")  # noqa: T201

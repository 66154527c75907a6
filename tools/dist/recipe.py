"""Render a recipe for conda on each of its platforms: `recipe.py FILE`."""

import sys
from pathlib import Path

from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

for platform in ("linux-64", "linux-aarch64", "osx-arm64"):
    recipe = Stage0Recipe.from_yaml(Path(sys.argv[1]).read_text())
    place = PlatformConfig(target_platform=platform, build_platform=platform, host_platform=platform)
    for variant in recipe.render(VariantConfig(), RenderConfig(platform=place)):
        rendered = variant.recipe() if callable(variant.recipe) else variant.recipe
        [source] = rendered.to_dict()["source"]
        print(platform, source["url"])

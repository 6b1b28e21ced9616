"""What the tests of recipes share."""

import os

import keras
import pytest


@pytest.fixture(autouse=True, scope="module")
def _compile_once(tmp_path_factory):
    """Runs of the same network share what JAX compiles, in other processes too."""
    if keras.backend.backend() != "jax" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.getbasetemp() / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.5,
    }
    before = {name: getattr(jax.config, name) for name in options}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()

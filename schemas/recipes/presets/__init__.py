"""The presets, one TOML file each: a package so that they are installed with the code."""

"""Found by every Python process whose path begins here: plants the fault that the environment names."""

import os

if _name := os.environ.get("ELASTICSCAN_SOAK_FAULT"):
    import soak_faults

    soak_faults.plant(_name)

"""Options for the JVMs of tests, of which most live for seconds."""

# What runs for some minutes does not earn back what thorough compilation costs.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

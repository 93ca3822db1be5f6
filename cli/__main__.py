"""`python -m elasticscan.cli`, for where the script is not on the path."""

from elasticscan.cli import main

main()

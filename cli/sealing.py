"""rotate-secret: another secret for continuation keys."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticscan.cli.options import Json, Uri
from elasticscan.cli.output import print_json, say
from elasticscan.store import Store


def rotate_secret(
    uri: Uri,
    revoke: Annotated[
        bool,
        typer.Option("--revoke", help="End all keys that were given out: somebody may have seen the old."),
    ] = False,
    json: Json = False,
) -> None:
    """Replace the secret that seals continuation keys; keys in use go on until their time is up."""
    with Store.open(uri) as store:
        number = store.rotate_secret(revoke)
    if json:
        print_json({"secret": number, "revoked": revoke})
    else:
        ended = "keys given out until now have ended" if revoke else "keys given out until now still open"
        say(f"Keys are sealed with secret {number} from now on; {ended}.")

"""Put an exported model on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from opportune.train.data.errors import need
from opportune.train.errors import ConfigError


def check_repository(repository: str) -> None:
    """Raise where ``repository`` cannot be a name on the hub, or the library is missing."""
    validators = need("huggingface_hub.utils", "hub")
    try:
        validators.validate_repo_id(repository)
    except ValueError as error:
        raise ConfigError(
            f"push_to_hub={repository!r} is not a name on the hub, such as me/my-model: {error}"
        ) from error


def push_to_hub(folder: Path, repository: str) -> str:
    """Upload ``folder`` in one commit, making the repository where there is none; returns its address.

    Who may see a new repository is decided by the account's own setting. The folder stays as it is whatever happens.
    """
    hub = need("huggingface_hub", "hub")
    try:
        address = str(hub.create_repo(repository, exist_ok=True))
        hub.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="Model exported by opportune")
    except Exception as error:  # the library and what lies below it raise some twenty kinds
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OSError(
            f"{folder} is exported, and could not be pushed to {repository}: {first_line}. "
            f"Log in (hf auth login), then: hf upload {repository} {folder}"
        ) from error
    return address

"""Finds the credentials of a store in the properties of PyIceberg's catalogs.

The names `s3.*` are the same. For Azure and Google, PyIceberg has properties of its own, and
`storageOptions` contains arguments of adlfs and gcsfs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kts_source.store.storage_options import S3_OPTIONS, STORAGE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARGUMENTS: Final = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
    "adls.connection-string": "connection_string",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
    "adls.account-host": "account_host",
    "gcs.project-id": "project",
    "gcs.oauth2.token": "token",
    "gcs.service.host": "endpoint_url",
}


def storage_of_catalog(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the storage options that the properties of a catalog contain."""
    options = {name: properties[name] for name, _ in S3_OPTIONS if name in properties}
    arguments = {
        argument: properties[name] for name, argument in _ARGUMENTS.items() if name in properties
    }
    return {**options, STORAGE_OPTIONS: json.dumps(arguments)} if arguments else options

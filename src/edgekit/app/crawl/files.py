"""The files of one repository with their sizes: one request to /api/models/NAME?blobs=true."""

from __future__ import annotations

from urllib.parse import quote

from edgekit.app.crawl.listing import read_files
from edgekit.app.crawl.types import FetchTask, Outcome, Status
from edgekit.errors import (
    HeaderError,
    RemoteAccessError,
    RemoteBusyError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.index.tables import as_json
from edgekit.sources.address import hub_endpoint
from edgekit.sources.async_http import AsyncTransport
from edgekit.units import MIB

MAX_BYTES = 16 * MIB  # 20,000 files with hashes are 6 MB
MAX_VALUES = 400_000


async def read_task(task: FetchTask, transport: AsyncTransport) -> Outcome:
    """The files, or why the hub does not list them."""
    url = f"{hub_endpoint()}/api/models/{quote(task.name)}?blobs=true"
    try:
        answer = await transport.get_json(
            url, name=task.name, limit_bytes=MAX_BYTES, limit_values=MAX_VALUES
        )
    except RemoteBusyError as error:
        return Outcome(kind=task.kind, name=task.name, status=Status.UNREACHABLE, detail=str(error))
    except RemoteAccessError as error:
        return Outcome(kind=task.kind, name=task.name, status=Status.GATED, detail=str(error))
    except RemoteNotFoundError as error:
        return Outcome(kind=task.kind, name=task.name, status=Status.MISSING, detail=str(error))
    except (RemoteInspectError, HeaderError) as error:
        return Outcome(kind=task.kind, name=task.name, status=Status.UNREADABLE, detail=str(error))
    siblings = answer.value.get("siblings") if isinstance(answer.value, dict) else None
    files = read_files(siblings)
    if files is None:
        detail = f"{task.name}: the hub did not list its files"
        return Outcome(kind=task.kind, name=task.name, status=Status.UNREADABLE, detail=detail)
    return Outcome(kind=task.kind, name=task.name, status=Status.DONE, found=as_json(files))

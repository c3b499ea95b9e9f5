"""The executor of commands on a server, over HTTP.

A response counts only if a Scrubjay server gave it. Every response of the server, errors included, carries the header
Scrubjay-Version, and its body has the fields that the command expects. A response that lacks either (a captive
portal, another service on the port, a redirect) raises Unavailable and acknowledges nothing. The header alone could
belong to another command, the fields alone to another service; a proxy has to pass the header on.

A proxy that decodes paths and takes dots out of them would make another request of a key such as "../../other/items/k".
Such a request carries its path in the header Scrubjay-Path too, and the server refuses it if it has another one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlsplit

from scrubjay.commands import CHANGES, CONTAINS, GET, MISSING, Command, field
from scrubjay.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    ScrubjayError,
    Unavailable,
    advice_if_out_of_files,
    from_response,
)
from scrubjay.executor import Executor
from scrubjay.settings import Settings
from scrubjay.transport import (
    Response,
    ResponseLost,
    StreamedResponse,
    Transport,
    open_transport,
    split_credentials,
    start_hint,
    without_credentials,
)
from scrubjay.validation import check_header
from scrubjay.version import __version__

T = TypeVar("T")

VERSION_HEADER = "scrubjay-version"
"""In every response of a Scrubjay server, with its version; in lower case, as `Response` has it."""
PATH_HEADER = "Scrubjay-Path"
"""In requests whose path a proxy may change: the path below the server's URL, as the client has written it."""
PIECE_BYTES = 2**18
"""Bytes read at once from a response that may be larger than memory."""
_MAYBE_DONE = "the request may have been carried out or not"
_WAIT_LONGER = "try again, or set SCRUBJAY_TIMEOUT to more seconds (in Python: timeout=)"
_ROUTE = re.compile(r"/(v1(/.*)?|health|ready)?$", re.DOTALL)
"""What a redirect of a request has behind the URL of the server."""
_HEADERS = {
    "User-Agent": f"scrubjay/{__version__}",
    "Accept": "application/json",
    "Content-Type": "application/json",
}


class HttpExecutor(Executor):
    """Runs commands on a server; what the server cannot do now is raised as Unavailable."""

    results_can_be_lost = True

    def __init__(self, settings: Settings, transport: Transport | None = None) -> None:
        url = str(settings.url).rstrip("/")
        self.location, _ = split_credentials(url)  # a password must not reach logs, errors or the queue file
        self._headers = dict(_HEADERS)
        if settings.api_key:
            # Not Authorization, which carries the credentials in the URL: they may be meant for a proxy.
            self._headers["X-API-Key"] = check_header("api_key", settings.api_key)
        self.timeout = settings.timeout
        self._transport = transport or open_transport(url, settings.timeout)

    def run(self, command: Command, idempotency_key: str | None = None) -> Any:
        verb = command.verb
        if verb is CONTAINS:
            return self._contains(command)
        if verb is CHANGES:
            command = self._with_short_wait(command)
        method, path, body, headers = command.request()
        if idempotency_key is not None:
            headers = {**headers, "Idempotency-Key": idempotency_key}
        try:
            return self.call(method, path, verb.from_json, body, headers)
        except NotFound:
            if verb.missing is NotImplemented:
                raise
            return verb.missing
        except OutcomeUnknown as error:
            if verb.writes:
                raise
            detail = error.detail.replace(_MAYBE_DONE, _WAIT_LONGER)
            raise Unavailable(detail, status=error.status) from error

    def close(self) -> None:
        self._transport.close()

    def call(
        self, method: str, path: str, read: Callable[[Any], T], body: str = "", headers: Mapping[str, str] | None = None
    ) -> T:
        """Send a request and return what `read` makes of the JSON of its response."""
        response = self._send(method, path, body, headers)
        self._check_sender(response)
        if response.status >= 300:
            raise self._error(response)
        return self._parse(response, read)

    def health(self) -> str:
        """The version of the server, if it answers and its store is ready."""
        self.call("GET", "/health", field("version", str))
        version: str = self.call("GET", "/ready", field("version", str))
        return version

    # ------------------------------------------------------------ bodies larger than memory

    def export(self, namespace: str, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        """Hand every line of a namespace's export to `write`."""
        self._download(f"{_root(namespace)}/export", write, progress)

    def import_(self, namespace: str, file: BinaryIO, read: Callable[[Any], T], *, replace: bool) -> T:
        """Import an export file; returns what `read` makes of the server's summary."""
        return self._upload(f"{_root(namespace)}/import?replace={json.dumps(replace)}", file, read)

    def backup(self, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        """Hand the server's whole database to `write`."""
        self._download("/v1/backup", write, progress)

    def erase(self, namespace: str, read: Callable[[Any], T]) -> T:
        """Erase a namespace; returns what `read` makes of the server's report."""
        return self._upload(f"{_root(namespace)}/erase", None, read)

    def _upload(self, path: str, file: BinaryIO | None, read: Callable[[Any], T]) -> T:
        stream = self._stream("POST", path, file)
        with contextlib.closing(stream):
            return self._parse(self._whole(stream), read)

    def _download(self, path: str, write: Callable[[bytes], object], progress: Callable[[int, int], object]) -> None:
        stream = self._stream("GET", path, None)
        with contextlib.closing(stream):
            total, done = int(stream.headers.get("Content-Length") or 0), 0
            while piece := self._read(stream, PIECE_BYTES):
                write(piece)
                done += len(piece)
                progress(done, total)
        if done < total:
            raise Unavailable(f"{self.location} closed the connection after {done:,} of {total:,} bytes; try again")

    def _stream(self, method: str, path: str, file: BinaryIO | None) -> StreamedResponse:
        try:
            stream = self._transport.stream(method, path, file, self._headers_for(path))
        except OSError as error:
            raise self._unreachable(error) from error
        if stream.status < 300 and VERSION_HEADER in _lower_names(stream.headers):
            return stream
        with contextlib.closing(stream):
            response = self._whole(stream)
        self._check_sender(response)
        raise self._error(response)

    def _whole(self, stream: StreamedResponse) -> Response:
        return Response(stream.status, _lower_names(stream.headers), self._read(stream))

    def _read(self, stream: StreamedResponse, size: int | None = None) -> bytes:
        try:
            return stream.read(size)
        except Exception as error:  # http.client and requests each raise errors of their own
            raise Unavailable(f"{self.location} broke off its response: {error}; try again") from error

    # ------------------------------------------------------------ one request

    def _contains(self, command: Command) -> bool:
        """HEAD has no body: the ETag tells whether the key exists, and any other failure is read from a GET."""
        response = self._send(*command.request())
        self._check_sender(response)
        if "etag" in response.headers:
            return response.status == 200
        return self.run(GET(command.namespace, *command.arguments)) is not MISSING

    def _with_short_wait(self, command: Command) -> Command:
        """A response that comes after the timeout is lost, so the server may wait half of it for changes."""
        *rest, wait = command.arguments
        return command._replace(arguments=(*rest, f"{min(wait, self.timeout / 2):g}"))

    def _send(self, method: str, path: str, body: str, headers: Mapping[str, str] | None) -> Response:
        try:
            return self._transport.send(method, path, body.encode(), self._headers_for(path, headers))
        except OSError as error:
            raise self._unreachable(error) from error

    def _headers_for(self, path: str, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
        path = path.partition("?")[0]
        if "%" in path or "/." in path:
            return {**self._headers, **(more or {}), PATH_HEADER: path}
        return {**self._headers, **more} if more else self._headers

    def _check_sender(self, response: Response) -> None:
        """Raise Unavailable for the response of something that is not a Scrubjay server."""
        if VERSION_HEADER in response.headers:
            return
        if 300 <= response.status < 400 and (target := response.headers.get("location")):
            root = _ROUTE.sub("", without_credentials(target))
            raise Unavailable(
                f"{self.location} answered ({response.status}), but not as a Scrubjay server; check SCRUBJAY_URL: it"
                f" redirects to {root!a}, so set that URL if the server is there; nothing was stored",
                status=response.status,
            )
        raise OutcomeUnknown(
            f"{self.location} answered ({response.status}), but not as a Scrubjay server; check SCRUBJAY_URL, and"
            " the network or proxy on the way: responses need the header Scrubjay-Version"
            + "; a proxy that limits the size of bodies, as nginx does by client_max_body_size, answers 413"
            * (response.status == 413),
            status=response.status,
        )

    def _parse(self, response: Response, read: Callable[[Any], T]) -> T:
        try:
            return read(MISSING if response.status == 204 else json.loads(response.data))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise OutcomeUnknown(
                f"{self.location} answered {response.status} in a form that this client (Scrubjay {__version__}) cannot"
                f" read ({error!r}); the server is Scrubjay {response.headers[VERSION_HEADER]}: use the same version"
                " for both, and check SCRUBJAY_URL",
                status=response.status,
            ) from error

    def _error(self, response: Response) -> ScrubjayError:
        """The error that the response stands for."""
        return self._parse(response, lambda body: self._read_error(body, response))

    def _read_error(self, body: Mapping[str, str], response: Response) -> ScrubjayError:
        code, detail = body["code"], body["detail"]
        path = urlsplit(self.location).path
        if code == "no_such_path" and path:
            root = self.location.removesuffix(path)
            return InvalidInput(f"{detail}; the URL {self.location} has the path {path!r}: write it as {root}")
        return from_response(code, detail, response.status, response.headers.get("retry-after"))

    def _unreachable(self, error: OSError) -> Unavailable:
        if isinstance(error, ResponseLost):
            return OutcomeUnknown(f"{self.location} did not answer: {error}; {_MAYBE_DONE}")
        advice = advice_if_out_of_files(error) or self._advice(getattr(error, "reason", ""))
        return Unavailable(f"cannot reach {self.location}: {error}; {advice}")

    def _advice(self, tls_failure: str) -> str:
        """What to do about a connection that failed; the reason is OpenSSL's, or empty."""
        if tls_failure == "CERTIFICATE_VERIFY_FAILED":
            return "if the certificate is your own, set REQUESTS_CA_BUNDLE to the file of its authority"
        if tls_failure:
            return f"the server does not seem to use TLS: try {self.location.replace('https://', 'http://', 1)}"
        return start_hint(self.location)


def _root(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}"


def _lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}

"""Scripts and styles, our own and the vendored ones (static/vendor/README.md)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.http.documents import problem_response
from headgate.http.page.rendering import static_file

_TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


async def static(request: Request) -> Response:
    name = request.path_params["file"]
    try:
        content, mark = static_file(name)
    except KeyError:
        return problem_response(404, f"the page has no file {name[:100]!r}")
    headers = {
        "ETag": f'"{mark}"',
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        # With the mark of its content in the address, it never changes.
        "Cache-Control": _FOR_EVER if request.query_params.get("v") == mark else "no-cache",
    }
    if request.headers.get("if-none-match") == f'"{mark}"':
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_type(name), headers=headers)


def _type(name: str) -> str:
    return _TYPES.get(name.rpartition(".")[2], "text/plain")

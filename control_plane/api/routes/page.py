"""Routes of the web page's static files, which contain no data of the cluster."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from control_plane.api.prefix import request_prefix
from control_plane.api.route_guards import GuardedRoute, allow_anyone
from control_plane.errors import Code, RequestError
from control_plane.page.page_files import ENTRY, PageFiles

# Scripts and styles are files of the page. The scripts create the images of charts and icon, and
# the images and audio of trials.
# `{api}` is the origin that the page may send requests to.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src data:; connect-src {api}; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# A policy inside a document cannot contain frame-ancestors; only the header can.
_OWN_POLICY = _POLICY.format(api="'self'") + "; frame-ancestors 'none'"

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_files = PageFiles()


@router.get("/")
@router.get("/ui")
@allow_anyone
async def redirect_to_page(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{request_prefix(request)}/ui/", 307)


@router.get("/ui/files.json")
@allow_anyone
def list_files() -> JSONResponse:
    """List the paths of the page's files, with the policy for a copy on another server.

    The policy is a Content-Security-Policy in which `{api}` stands for the API's origin. The list
    is empty if the page is not built.
    """
    return JSONResponse({"files": _files.paths(), "policy": _POLICY})


@router.get("/ui/{path:path}")
@allow_anyone
def get_file(path: str, request: Request) -> Response:
    file = _files.find(path or ENTRY, request.headers.get("accept-encoding", ""))
    if file is None:
        raise RequestError(Code.NOT_FOUND, "the web page has no such file")
    headers = {
        "Cache-Control": file.cache_control,
        "Content-Security-Policy": _OWN_POLICY,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if file.encoding:
        headers["Content-Encoding"] = file.encoding
    return Response(file.content, media_type=file.media_type, headers=headers)

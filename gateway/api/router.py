"""Sends each request to the handler of its route. A 405 names the methods of a path, a 404 suggests a path."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from gateway.access.keys import Access, Viewer
from gateway.api.routes import CALLS, DESCRIPTION, LIVE_PAGE, TABLE, Guard, MethodTable, Route
from gateway.api.views import Page, Views, failure_page
from gateway.batches import BatchHandler, BatchOperation
from gateway.core.errors import Failure
from gateway.core.fields import excerpt
from gateway.core.transport import Handler, Request, Responder
from gateway.dialects import BY_PATH

_NO_WEBSOCKETS = Failure(426, "invalid_request_error", "There are no websockets here: POST to this path.")


@dataclass(frozen=True, slots=True)
class Router:
    """One listener. That of administrators serves views only."""

    model_calls: Handler
    views: Views
    batches: BatchHandler
    access: Access
    is_admin: bool = False

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler`."""
        if request.method == "POST" and request.path in CALLS and not self.is_admin:
            return self.model_calls(request, responder)
        return self._route(request, responder)

    async def _route(self, request: Request, responder: Responder) -> None:
        methods, values = TABLE.at(request.path)
        route = methods.get(request.method)
        if route is None or (self.is_admin and not route.is_view):
            await responder.reply(*await self._refuse(request, {} if route else methods))
        elif route.handler is None:
            await self.model_calls(request, responder)
        elif isinstance(route.handler, BatchOperation):
            await self.batches(route.handler, values, request, responder)
        else:
            viewer = await self._viewer(route, request)
            page = (
                failure_page(viewer)
                if isinstance(viewer, Failure)
                else route.handler(self.views, request, viewer, *values)
            )
            await responder.reply(*page)

    async def _viewer(self, route: Route, request: Request) -> Viewer | Failure | None:
        """Return who looks at a view, where that matters, or why the view is not shown."""
        match route.guard:
            case Guard.KEY:
                return await self.access.viewer(request.headers, self.is_admin)
            case Guard.METRICS:
                return await self.access.metrics_failure(request.headers, self.is_admin)
            case Guard.ENGINES:
                return Viewer(None) if await self.access.sees_engines(request.headers, self.is_admin) else None
            case Guard.NONE:
                return None

    async def _refuse(self, request: Request, methods: MethodTable) -> Page:
        """Answer a request that no route takes; `methods` are those of its path."""
        path, method = request.path, request.method
        tries_websocket = path in CALLS and BY_PATH[path].tries_websocket
        if methods and tries_websocket and request.headers.get("upgrade", "").lower() == "websocket":
            return failure_page(_NO_WEBSOCKETS, path, ("Upgrade", "HTTP/1.1"))
        if allowed := [name for name in methods if name != "HEAD"]:
            text = f"{excerpt(path)} takes {' and '.join(allowed)}, not {excerpt(method)}."
            return failure_page(Failure(405, "invalid_request_error", text), path, ("Allow", ", ".join(allowed)))
        if path.startswith("/v1/") and method in ("GET", "HEAD"):
            viewer = await self.access.viewer(request.headers, self.is_admin)
            if isinstance(viewer, Failure):
                return failure_page(viewer)
        return failure_page(_unknown(request))


def _unknown(request: Request) -> Failure:
    path = excerpt(request.path)
    text = f"There is no {excerpt(request.method)} {path} here."
    if f"/v1{path}" in CALLS or path == "/models":
        text += f" Did you mean /v1{path}? Base URLs of OpenAI clients end in /v1."
    elif path.startswith("/v1/v1/"):
        text += f" Did you mean {path[3:]}? This client adds /v1 itself: leave it out of its base URL."
    else:
        text += f" {DESCRIPTION} lists all paths, {LIVE_PAGE} shows what happens now."
    return Failure(404, "not_found_error", text)

"""/picture.svg and /badge.svg: an answer of `check` as an image. An error is a grey badge with the message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from edgekit.app.check import Unanswered
from edgekit.report.picture import badge_svg, error_badge_svg, picture_svg, read_theme
from edgekit.report.shared_answer import SharedAnswer, shared_answer, today
from edgekit.web.api import answer_in_thread
from edgekit.web.calls import WebState, first_check
from edgekit.web.requests import PICTURE, CallFields
from edgekit.web.security import IMAGES, SVG
from edgekit.web.types import CallWatch

Draw = Callable[[SharedAnswer, str], str]

router = APIRouter(tags=["images"])


def _add(path: str, summary: str, draw: Draw) -> None:
    async def endpoint(request: Request, fields: CallFields) -> Response:
        def work(state: WebState, watch: CallWatch) -> Response:
            theme = read_theme(getattr(fields, "theme", None) or "light")
            answer = first_check(state, fields, watch)
            if isinstance(answer, Unanswered):
                raise answer.error
            return image_response(draw(shared_answer(answer, today()), theme), 200)

        return await answer_in_thread(request, work, is_long=True)

    endpoint.__annotations__["fields"] = Annotated[PICTURE, Query()]
    image: dict[str, Any] = {"content": {SVG: {"schema": {"type": "string"}}}}
    failed = {**image, "description": "A grey badge with the message"}
    router.add_api_route(
        path,
        endpoint,
        methods=["GET"],
        summary=summary,
        operation_id=path.strip("/").replace(".", "_"),
        response_class=Response,
        responses={200: {**image, "description": "SVG"}, "4XX": failed, "5XX": failed},
    )


_add(IMAGES[0], "The answer of check as a picture of 1200 x 630 pixels", picture_svg)
_add(IMAGES[1], "The answer of check as a badge", lambda answer, _theme: badge_svg(answer))


def image_response(svg: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(svg, status, dict(headers or {}), media_type=SVG)


def failed_image(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The badge of an error."""
    return image_response(error_badge_svg(message), status, headers)

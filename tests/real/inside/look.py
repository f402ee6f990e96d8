"""Looks at `/ui` as a person would, in a real Chromium; one JSON object per step on standard output.

Arguments: browser, folder of its libraries, URL of the page, a client key, where the picture goes. Before the last
step, in which the gateway is gone, it waits for a line on standard input.
"""

import json
import os
import sys

from playwright.sync_api import Page, sync_playwright

ROWS = "#rows tr"
DEADLINE_MS = 60_000
FLAGS = ("--no-sandbox", "--no-zygote", "--single-process", "--headless=shell", "--font-render-hinting=none")


def tell(**found: object) -> None:
    print(json.dumps(found), flush=True)


def column(page: Page, number: int) -> list[str]:
    return [str(text) for text in page.locator(f"#rows tr td:nth-child({number})").all_inner_texts()]


def unlock(page: Page, key: str) -> None:
    page.wait_for_selector("#ask:not([hidden])")
    tell(step="locked", problem=page.inner_text("#problem"), rows=page.locator(ROWS).count())
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.locator("#problem", has_text="not known").wait_for()
    page.fill("#key", key)
    page.click("#ask button")


def watch(page: Page, headers: dict[str, str], picture: str) -> None:
    for phase in ("waiting", "decode"):
        page.wait_for_selector(f"#rows .phase.{phase}")
    page.locator(".timeline rect.prefill").nth(70).wait_for(state="attached")
    page.select_option("#window", "30")
    page.screenshot(path=picture, full_page=True)
    tell(
        step="open",
        headers=headers,
        counts=page.inner_text("#counts"),
        replicas=page.locator("#replicas li").all_inner_texts(),
        gauges=page.locator("#replicas .gauge .used").count(),
        sessions=column(page, 1),
        names=page.locator("#names th").all_inner_texts(),
        bars=sorted({bar.get_attribute("class") for bar in page.locator(".timeline rect").all()}),
    )


def sort_and_filter(page: Page) -> None:
    page.click("#names button:text-is('turn')")
    turns = [int(text) for text in column(page, 5)]
    first = column(page, 1)[0]
    page.fill("#filter", first)
    tell(step="sorted", turns=turns, filtered=column(page, 1), first=first)


def ask_why(page: Page) -> None:
    page.fill("#filter", "")
    session = page.locator("#rows tr td:first-child button").first
    name = session.inner_text()
    session.click()
    page.wait_for_selector("#why:not([hidden]) #why-turns li")
    shades = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    page.emulate_media(color_scheme="light")
    remedy, turns = page.inner_text("#why-remedy"), page.locator("#why-turns li").count()
    tell(step="why", name=name, of=page.inner_text("#why-of"), remedy=remedy, turns=turns, shades=shades)
    page.click("#why-close")
    page.wait_for_selector("#why", state="hidden")


def main() -> None:
    browser_path, libraries, url, key, picture = sys.argv[1:]
    with sync_playwright() as playwright:
        environment = os.environ | {"LD_LIBRARY_PATH": libraries}
        browser = playwright.chromium.launch(executable_path=browser_path, args=[*FLAGS], env=environment)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(DEADLINE_MS)
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        response = page.goto(url)
        assert response is not None
        unlock(page, key)
        watch(page, response.headers, picture)
        sort_and_filter(page)
        ask_why(page)
        sys.stdin.readline()
        page.wait_for_selector("#problem:not([hidden])")
        left = page.locator(ROWS).count()
        tell(step="gone", problem=page.inner_text("#problem"), rows=left, said=said, asked=sorted(set(asked)))
        browser.close()


if __name__ == "__main__":
    main()

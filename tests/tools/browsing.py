"""Opening a results page in a browser, and looking at it."""

import re

ARGUMENTS = [
  "--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
ALL_DRAWN = "[...document.querySelectorAll('.block')].every(block => block.dataset.drawn === 'true')"


def open_page(browser, path, wrong, width, **settings):
  """Open the page in a new view; requests to the network and errors are added to `wrong`."""

  def check(request):
    if not request.url.startswith(("file:", "data:", "blob:")):
      wrong.append(f"request of {request.url}")

  view = browser.new_page(viewport={"width": width, "height": 900}, **settings)
  view.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
  view.on("pageerror", lambda error: wrong.append(str(error)))
  view.on("request", check)
  view.goto(path.as_uri())
  return view


def wait_until(view, condition, seconds=20):
  """Not `wait_for_function`, which evaluates text within the page: its security policy forbids that."""
  for _ in range(20 * seconds):
    if view.evaluate(condition):
      return
    view.wait_for_timeout(50)
  raise TimeoutError(condition)


def draw_all(view):
  for block in view.locator(".block").all():
    block.scroll_into_view_if_needed()
  wait_until(view, ALL_DRAWN)


def brightness(color):
  """Relative luminance of "#rrggbb" or "rgb(r, g, b)", as WCAG has it."""
  if color.startswith("#"):
    parts = [int(color[place : place + 2], 16) for place in (1, 3, 5)]
  else:
    parts = [int(number) for number in re.findall(r"\d+", color)[:3]]
  linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in parts]
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
  """The contrast of two colours, as WCAG has it: 1 to 21."""
  low, high = sorted((brightness(one), brightness(other)))
  return (high + 0.05) / (low + 0.05)

"""The vocabulary of the bundled samples.

Stations, services, names, cities, jobs, classes, functions, modules, teams and days are one token each, with a leading
space, in the bundled model's vocabulary: a value that takes several tokens is evicted piece by piece, and nothing can
be measured on it.
"""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STATIONS = _split(
    "Cedar Maple Falcon Harbor Raven Willow Copper Summit Canyon Eagle Forest River Crystal Thunder Prairie Coral "
    "Stone Silver Iron Bridge Castle Garden Mountain Valley Island Ocean Winter Summer Autumn Spring"
)
SERVICES = _split(
    "billing search payments catalog gateway auth inventory shipping profile ledger notify media metrics cart orders "
    "reports"
)
NAMES = _split(
    "Alice Peter Maria Henry Sarah Victor Laura George Emma Oscar Helen Martin Julia Frank Clara Simon Diana Walter "
    "Rachel Arthur Nancy Edward Sophie Thomas"
)
CITIES = _split(
    "Lisbon Madrid Oslo Cairo Lima Delhi Seoul Tokyo Milan Paris Prague Vienna Dublin Athens Berlin London Boston "
    "Chicago Denver Miami"
)
TOPICS = ("opening hours", "visitor rules", "printing supplies", "travel budget", "parking permits", "safety training")
CLOSING_LOGS = ("firewall", "backup", "cron", "dns", "proxy", "storage")

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
BUILDINGS = (
    "main hall",
    "garage",
    "library",
    "warehouse",
    "kitchen",
    "north gate",
    "laboratory",
    "workshop",
    "greenhouse",
    "boathouse",
)
# What surrounds a fact on a page of the registry. No sentence holds a station, a person or a city.
SENTENCES = (
    "The weather at the site was calm and dry on {weekday} morning.",
    "The renovation of the {building} will take about {number} more weeks.",
    "Traffic near the {building} was heavier than usual last month.",
    "The committee met on {weekday} and agreed on a new schedule.",
    "An inspection of the {building} found nothing that needs attention.",
    "A delivery of fresh supplies is expected at the {building} soon.",
    "About {number} volunteers helped to clean the paths after the storm.",
    "The road to the site is closed for repairs until {weekday}.",
    "New solar panels were put on the roof of the {building}.",
    "The editor of this page last checked the text on {weekday}.",
    "Some old maps of the area hang in the {building} now.",
    "The yearly budget leaves room for {number} small repairs this time.",
    "Phone reception is poor in the {building} but good outside.",
    "The {building} has the capacity for about {number} groups at once.",
    "The lights in the {building} were replaced by brighter ones recently.",
    "A short guide for new guests was printed in {number} languages.",
    "The heating of the {building} was repaired before the cold weeks.",
    "The notice board was moved from the {building} to the entrance.",
    "Lunch is served from noon until two in the small canteen.",
    "The clock in the {building} has been slow since last week.",
)
# What surrounds a fact in a log: {a} and {b} are numbers from 2 to 99, {a} the smaller one.
LOG_LINES = (
    "checked {a} endpoints in {b} ms",
    "rotated {a} log files",
    "cache warmed with {b} entries",
    "worker {a} finished its batch",
    "heartbeat received after {a} ms",
    "queue depth is {a}",
    "connection pool resized to {a}",
    "{b} requests served in the last minute",
    "garbage collection took {a} ms",
    "retry {a} of {b} succeeded",
    "disk usage is at {b} percent",
    "certificate is valid for {b} more days",
    "memory usage is {b} megabytes",
    "{a} stale sessions were closed",
    "config reloaded without changes",
    "metrics flushed to disk",
)

JOBS = _split("billing payments catalog auth inventory invoice profile media metrics cart orders reports")
CLASSES = _split(
    "Builder Manager Walker Reader Writer Worker Client Server Session Cache Queue Monitor Counter Filter Printer "
    "Index Store Factory Registry Controller Provider"
)
FUNCTIONS = _split(
    "load save parse render convert merge split fetch connect compile validate normalize encode decode transform "
    "update search calculate resolve export import report publish schedule"
)
MODULES = _split(
    "core utils models views routes handlers tables config settings storage network database logging plugins formats "
    "filters tokens events workers helpers schema engine graph"
)
CLOSING_FILES = ("README", "setup", "tests", "license", "changelog", "examples")
# What surrounds a fact in the code: {a} and {b} are numbers from 2 to 99, {a} the smaller one.
CODE_LINES = (
    "    total = total + {a}",
    "    if count > {b}:",
    "        return None",
    "    for step in range({a}):",
    "        retries = {b}",
    '    log.info("done in {a} ms")',
    "    timeout = {b}",
    "    items.append({a})",
    "    assert size < {b}",
    "    self.limit = {a}",
    "    # Wait at most {b} seconds.",
    '    raise ValueError("too large")',
    "    rows = rows[:{b}]",
    "    width = {a} * {b}",
    "        continue",
    "    # Numbers below {a} are skipped.",
)

TEAMS = _split(
    "design finance marketing research sales support legal security training hardware software music science travel "
    "press garden"
)
DAYS = _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
CLOSING_TASKS = (
    "room booking",
    "lunch orders",
    "printed lists",
    "parking places",
    "projector and light",
    "welcome tour",
    "cleaning",
    "signs",
)
# What surrounds a constraint. No sentence holds a person, a team or a day.
PLANS = (
    "The {building} can hold about {number} guests at once.",
    "A projector and {number} microphones are stored in the {building}.",
    "Lunch for {number} people can be ordered a week ahead.",
    "The {building} has been painted and smells fresh again.",
    "Parking near the {building} is free for {number} hours.",
    "The {building} is heated and has large windows.",
    "About {number} chairs in the {building} need a repair.",
    "Tea and coffee are served in the {building} twice a day.",
    "The price of the {building} includes cleaning and light.",
    "A short tour through the {building} takes {number} minutes.",
    "The door of the {building} opens with a card.",
    "Each group gets {number} folders and a printed list.",
    "The {building} was used by {number} groups last year.",
    "Signs from the entrance to the {building} are being printed.",
    "Wireless access in the {building} works well for {number} devices.",
    "The invitations will be printed on thick paper this time.",
    "A stand with {number} posters will be set up in the {building}.",
    "The {building} stays quiet because the road is closed.",
    "The caterer asks for the number of plates in advance.",
    "First aid is kept in the {building} behind the counter.",
)

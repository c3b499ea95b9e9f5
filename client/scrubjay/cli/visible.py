"""The rule for characters that a reader does not see; server/dashboard/dom.js has the same for the dashboard."""

from __future__ import annotations

import json
import re
from functools import cache

_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Control characters, Unicode's default-ignorable characters (joiners, directions, variation selectors, tags), line
separators, annotations and lone surrogates; but line breaks and tabs are layout."""
_JOINING = (
    r"\u0590-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefc"
    r"\U00010800-\U00011fff\U0001e900-\U0001e95f"
)
"""Scripts in which a joiner changes the shape of letters, such as Arabic, Devanagari, Khmer and Mongolian."""
_EMOJI = r"\u2100-\u2bff\U0001f000-\U0001faff"
_HAN = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SELECTABLE = rf"{_JOINING}{_EMOJI}{_HAN}\xa9\xae\u203c\u2049\u3030\u303d\u3297\u3299"
"""Characters that a variation selector may follow."""
_FLAGS = (
    r"\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|"
    r"\U000e0077\U000e006c\U000e0073)\U000e007f"
)
"""The flags of England, Scotland and Wales, which end in invisible letters."""
_PARTS = (
    rf"(?<=[{_JOINING}])\u200c(?=[{_JOINING}]|[^\W_])",
    rf"(?<=[^\W_])\u200c(?=[{_JOINING}])",
    rf"(?<=[{_JOINING}])\u200d",
    rf"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])",
    rf"(?<=[{_SELECTABLE}])[\ufe00-\ufe0f\u180b-\u180d\u180f\U000e0100-\U000e01ef]",
    r"(?<=[0-9#*])\ufe0f(?=\u20e3)",
    _FLAGS,
)
"""Where an invisible character is part of a word or of an emoji. A second one after it is not."""


@cache
def _pattern() -> re.Pattern[str]:
    """Compiled when it is needed: that takes as long as many a command."""
    return re.compile(rf"({'|'.join(_PARTS)})|[{_INVISIBLE}]")


def visible(text: str) -> str:
    """A text in which invisible characters are written as in JSON, so that they deceive no reader.

    Those that are part of a word or of an emoji stay, as in Persian.
    """
    if text.isascii() and text.isprintable():
        return text
    return _pattern().sub(lambda found: found[1] or json.dumps(found[0])[1:-1], text)

"""A YAML file whose errors name the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qualab.errors import InvalidValue, QualabError, UsageError

Place = Sequence[str | int]
"""The keys that lead to a value: ("baseline", "port")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that holds a mapping."""

    path: Path
    root: yaml.MappingNode
    content: dict[str, Any]

    def error(
        self, place: Place, message: str, *, hint: str = "", kind: type[QualabError] = InvalidValue
    ) -> QualabError:
        """An error about the value at a place, or about the nearest value around it that there is."""
        return kind(f"{self.path}, line {self._line(place)}: {message}", hint=hint)

    def _line(self, place: Place) -> int:
        node: yaml.Node = self.root
        line = node.start_mark.line
        for key in place:
            found = next(((k, v) for k, v in _entries(node) if k.value == str(key)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        return line + 1


def _entries(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))


def read_document(path: Path, *, hint: str) -> Document:
    """Raises UsageError for what cannot be read, is not YAML, says a thing twice or holds no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as exc:
        raise UsageError(f"Cannot read {path}: {exc.strerror}", hint=hint) from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UsageError(f"{place} is not YAML: {getattr(exc, 'problem', None) or exc}", hint=hint) from exc
    if not isinstance(root, yaml.MappingNode) or not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings", hint=hint)
    _check_said_once(path, root)
    return Document(path=path, root=root, content=content)


def _check_said_once(path: Path, node: yaml.Node) -> None:
    """YAML itself would silently take the last."""
    seen: set[str] = set()
    for key, value in _entries(node):
        if key.value in seen:
            raise InvalidValue(f"{path}, line {key.start_mark.line + 1}: {key.value} is given twice")
        seen.add(key.value)
        _check_said_once(path, value)

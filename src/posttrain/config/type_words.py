"""What a JSON Schema node takes, in plain words: `integer ≥ 1`, `one of: a, b`, `list of text`."""

from collections.abc import Callable

from posttrain.config.schema import Node, alternatives, is_section, ref_name, resolve, tags

_FORMATS = {
    "path": "path",
    "file-path": "path of a file",
    "directory-path": "path of a folder",
    "date": "date",
    "date-time": "date and time",
    "time": "time",
    "duration": "duration",
    "uri": "URL",
}
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def _plain_section(name: str, label: str) -> str:
    return f"a section with {label}" if label else "a section"


def words(node: Node, root: Node, section: Callable[[str, str], str] = _plain_section) -> str:
    """Name the values that a node takes. `section(name, "type: math")` names a model."""

    def inner(child: Node) -> str:
        return words(child, root, section)

    if tagged := tags(node):
        key, members = tagged
        return _either([section(ref_name(m["$ref"]), f"{key}: {tag}") for tag, m in members.items()], False)
    members = alternatives(node)
    if members != [node]:
        nullable = len(members) < len(node.get("anyOf") or node["oneOf"])
        return _either([inner(member) for member in members], nullable)
    target = resolve(node, root)
    if is_section(target):
        return section(ref_name(node.get("$ref", "")), "")
    if "enum" in target or "const" in target:
        return _choices(target.get("enum", [target.get("const")]))
    if target.get("type") == "array":
        return _list(target, inner)
    if target.get("type") == "object":
        values = target.get("additionalProperties")
        kind = _sized("mapping", target, "Properties", "keys")
        return f"{kind} of names to {inner(values)}" if isinstance(values, dict) else kind
    return _scalar(target)


def _either(parts: list[str], nullable: bool) -> str:
    parts = list(dict.fromkeys([*parts, "null"] if nullable else parts))
    between = "; or " if any("," in part or " and " in part for part in parts) else " or "
    return between.join(parts)


def _choices(values: list[object]) -> str:
    shown = ["null" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return f"one of: {', '.join(shown)}" if len(shown) > 1 else f"`{shown[0]}`"


def _list(node: Node, inner: Callable[[Node], str]) -> str:
    if "prefixItems" in node:
        return f"list of exactly: {', '.join(inner(item) for item in node['prefixItems'])}"
    kind = _sized("list", node, "Items", "items")
    if not node.get("items"):
        return kind
    item = inner(node["items"])
    return f"{kind} of {'sections' + item.removeprefix('a section') if item.startswith('a section') else item}"


def _scalar(node: Node) -> str:
    kind = node.get("type")
    if kind in ("integer", "number"):
        bounds = [f"{sign} {node[key]}" for key, sign in _BOUNDS if key in node]
        if "multipleOf" in node:
            bounds.append(f"a multiple of {node['multipleOf']}")
        return " ".join([kind, " and ".join(bounds)]).rstrip()
    if kind == "string":
        text = _FORMATS.get(node.get("format", ""), "text")
        if "pattern" in node:
            text += f" matching `{node['pattern']}`"
        return _sized(text, node, "Length", "characters")
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "anything")


def _sized(kind: str, node: Node, what: str, unit: str) -> str:
    low, high = node.get(f"min{what}"), node.get(f"max{what}")
    if low == 1 and high is None:
        return f"non-empty {kind}"
    limits = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
    return f"{kind} ({' and '.join(limits)} {unit})" if limits else kind

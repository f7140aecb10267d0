"""rules.py -- rules.toml, checked: which kernel serves how many tokens, as templates/moek_rules.h.j2 writes it in C.

A rule is a list of lines (when, value, note); conditions and values are expressions of facts.  They are parsed as
Python, which knows the same operators with the same precedence, and written anew as C.  A fact is a whole number that
is not negative.  A division has no difference in it, and a divisor that cannot be 0: there both languages agree."""
import ast, re

OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
             ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||"}
STRENGTH = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6}


class Bad(Exception):
    """A sentence for the user."""


def positive(node):
    """Is an expression without differences greater than 0, whatever the facts are?"""
    if isinstance(node, ast.Constant):
        return node.value > 0
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        return (any if isinstance(node.op, ast.Add) else all)(map(positive, (node.left, node.right)))
    return False


def in_c(text, facts, at):
    """An expression of rules.toml, as C."""
    def no(why):
        raise Bad(f"{at}: {text!r}: {why}")

    def operator(node):
        if type(node) not in OPERATORS:
            no(f"{type(node).__name__} is no operator of a rule; there are + - * / < <= > >= == != and or not")
        return OPERATORS[type(node)]

    def walk(node, outer=0):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 1 << 40:
            return str(node.value) + ("ll" if node.value >> 31 else "")
        if isinstance(node, ast.Name):
            if node.id not in facts:
                no(f"{node.id} is no fact; there are {' '.join(facts)}")
            return "f->" + node.id
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return "!" + walk(node.operand, 9)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Div) and any(isinstance(n, ast.Sub) for n in ast.walk(node)):
                no("a division of or by a difference, which may be negative")
            if isinstance(node.op, ast.Div) and walk(node.right) and not positive(node.right):
                no("a divisor that may be 0; divide by a number of at least 1, or add one, as in  a / (b + 1)")
            sign, parts = operator(node.op), [node.left, node.right]
        elif isinstance(node, ast.BoolOp):
            sign, parts = operator(node.op), node.values
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            sign, parts = operator(node.ops[0]), [node.left, node.comparators[0]]
        else:
            no("a rule has whole numbers, facts, + - * /, comparisons of two, and, or, not")
        strength = STRENGTH[sign]
        joined = f" {sign} ".join(walk(p, strength + (i > 0)) for i, p in enumerate(parts))
        mixed = sign == "&&" and outer in (1, 2)       # && in ||: compilers ask for the parentheses
        return f"({joined})" if strength < outer or mixed else joined
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        no("it is no expression")
    return walk(tree.body)


def word(name):
    return isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None


def prose(text):
    return isinstance(text, str) and re.fullmatch(r"[ -~]+", text) is not None and "*/" not in text


def check_rules(table, where):
    """facts, and for each rule: about, and lines of when, value and note, in C."""
    for key in table:
        if key not in ("facts", "rules"):
            raise Bad(f"{where}: unknown key {key!r}; known: facts rules")
    facts, rules = table.get("facts"), table.get("rules")
    for name, part in (("facts", facts), ("rules", rules)):
        if not isinstance(part, dict) or not part or not all(map(word, part)):
            raise Bad(f"{where}: {name} must be a table; its names are of small letters, digits and _")
    for name, about in facts.items():
        if not prose(about):
            raise Bad(f"{where}: facts.{name} must be a short text, not {about!r}")
    out = {}
    for name, rule in rules.items():
        at = f"{where}: rules.{name}"
        if not isinstance(rule, dict) or set(rule) != {"about", "lines"} or not prose(rule["about"]):
            raise Bad(f"{at}: a rule has about, a text, and lines")
        lines = rule["lines"]
        if not isinstance(lines, list) or not lines or not all(isinstance(line, dict) for line in lines):
            raise Bad(f"{at}: lines must be a list, as in  lines = [ {{ value = 1, note = \"an-id\" }} ]")
        for i, line in enumerate(lines):
            last = i == len(lines) - 1
            if set(line) != {"value", "note"}.union(() if last else ("when",)):
                raise Bad(f"{at}: line {i + 1} has {' '.join(line)}; each has when, value and note, the last no when")
            if not isinstance(line["note"], str) or not re.fullmatch(r"[a-z0-9-]+", line["note"]):
                raise Bad(f"{at}: line {i + 1}: note must be the id of an entry in docs/notes")
            if isinstance(line["value"], bool) or not isinstance(line["value"], (int, str)) or \
                    not isinstance(line.get("when", ""), str):
                raise Bad(f"{at}: line {i + 1}: value is a whole number or an expression, when an expression")
        out[name] = {"about": rule["about"], "lines": [
            {"when": in_c(line["when"], facts, at) if "when" in line else "",
             "value": in_c(str(line["value"]), facts, at), "note": line["note"]} for line in lines]}
    return {"facts": facts, "rules": out}

#!/usr/bin/env python3
"""Renders the chats of tests/goldens/tokenizer/chats.json anew, with the reference implementation of templates.

    pip install jinja2 && make_chat_goldens.py FILE

FILE is a JSON object: "templates", texts by name, and "cases", a list of {"template", "name", "messages", "thinking"}. Each case
receives "text". The environment and the variables are those of transformers' apply_chat_template.
"""
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox


def main():
    path = pathlib.Path(sys.argv[1])
    chats = json.loads(path.read_text(encoding="utf-8"))
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[jinja2.ext.loopcontrols])
    for case in chats["cases"]:
        template = environment.from_string(chats["templates"][case["template"]])
        flag = {} if case["thinking"] is None else {"enable_thinking": case["thinking"]}
        case["text"] = template.render(messages=case["messages"], tools=None, documents=None, add_generation_prompt=True,
                                       **flag)
    templates = json.dumps(chats["templates"], indent=1, ensure_ascii=False)
    cases = ",\n".join(json.dumps(case, ensure_ascii=False) for case in chats["cases"])
    path.write_text(f'{{"templates": {templates},\n"cases": [\n{cases}\n]}}\n', encoding="utf-8")
    print(f"{path}: {len(chats['cases'])} cases of {len(chats['templates'])} templates")


main()

"""Preprocessor of mdBook: fits links to the book.

The pages link to each other and to files of the repository. In the book a link to a page leads to its
chapter, also where another chapter includes the page or the link names its folder. A file that is not
in the book becomes its path, without a link.
"""

import json
import os.path
import re
import sys

# Pages of the repository that a chapter includes.
INCLUDED = {"../ARCHITECTURE.md": "architecture.md"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def chapters(part):
    """All chapters below a part of the book, whatever its lists are called."""
    if isinstance(part, list):
        for one in part:
            yield from chapters(one)
    elif isinstance(part, dict):
        if "Chapter" in part:
            yield part["Chapter"]
            yield from chapters(part["Chapter"]["sub_items"])
        else:
            yield from chapters(part.get("items") or part.get("sections") or [])


def fit(chapter, known, root):
    """Changes the links of a chapter."""
    here = chapter["source_path"]
    # What a chapter includes has its links relative to the file's own folder.
    source = next((file for file, own in INCLUDED.items() if own == here), here)

    def target(match):
        text, link = match.groups()
        path, _, place = link.partition("#")
        if not path or ":" in path:
            return match.group(0)
        file = os.path.normpath(os.path.join(os.path.dirname(source), path))
        file = re.sub(r"^\.\./docs/", "", file)
        page = INCLUDED.get(file, file)
        if page + "/README.md" in known:
            page += "/README.md"
        # Of the files that are no pages mdBook copies those in its own folder.
        is_copied = not page.startswith("..") and not page.endswith(".md")
        if is_copied and os.path.isfile(os.path.join(root, page)):
            return match.group(0)
        if page not in known:
            path = re.sub(r"^\.\./", "", file if file.startswith("../") else "docs/" + file)
            return text if text.strip("`") in path else f"{text} (`{path}`)"
        way = os.path.relpath(known[page], os.path.dirname(here) or ".")
        return f"[{text}]({way}{'#' + place if place else ''})"

    lines, is_code = [], False
    for line in chapter["content"].split("\n"):
        is_code ^= line.lstrip().startswith("```")
        lines.append(line if is_code else LINK.sub(target, line))
    chapter["content"] = "\n".join(lines)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    all_chapters = [one for one in chapters(book) if one.get("source_path")]
    # mdBook calls the first page of a folder `index.md`, whatever its file is called.
    known = {one["source_path"]: one["path"] for one in all_chapters}
    for chapter in all_chapters:
        fit(chapter, known, context["root"])
    json.dump(book, sys.stdout)


main()

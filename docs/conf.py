"""The site of the documentation: the pages of this folder, and a reference made of docstrings, parsers and tables."""

import dataclasses
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import ips2_dask
from ips2_dask.store import layout

project = "ips2_dask"
release = ips2_dask.__version__
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"),
    *("sphinxcontrib.autoprogram", "sphinxcontrib.mermaid"),
]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = html_show_copyright = False
highlight_language = "none"
default_role = "py:obj"  # `Run` in a docstring
myst_heading_anchors = 4  # as code hosts name them
myst_fence_as_directive = ["mermaid"]
mermaid_height = "auto"
napoleon_use_rtype = False
autodoc_typehints = "none"  # docstrings say more
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    # what these have is documented where they are
    "inherited-members": "IPS2, BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _SetOutputMixin, "
    "_MetadataRequester, BaseException, tuple",
    # scikit-learn's, and attributes that the docstring of `IPS2` has
    "exclude-members": "set_fit_request, affinity_matrix_, pairwise_similarity_, high_order_similarity_",
}


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the template of stored arrays, and lead links to the README to the first page, which includes it."""
    if name == "reference/arrays":
        source[0] = app.builder.templates.render_string(source[0], vars(layout))
    source[0] = source[0].replace("(../README.md", "(index.md")


def mend(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make links of the pages that a docstring names, and an entry that search knows of each parameter of a record."""
    lines[:] = [re.sub(r"docs/(\w+)\.md", r":doc:`\g<0> </\1>`", line) for line in lines]
    if dataclasses.is_dataclass(thing) and "Parameters" in lines:
        lines[lines.index("Parameters")] = "Attributes"


def lead(app: Sphinx, doctree: nodes.document) -> None:
    """Lead public names to the package's, and the words of types, such as "path or URL", nowhere."""
    for node in [*doctree.findall(addnodes.pending_xref)]:
        if node["reftarget"].partition(".")[0] in ips2_dask.__all__:
            node["py:module"] = "ips2_dask"
        elif node.get("refspecific"):
            node.replace_self(node.children)


def setup(app: Sphinx) -> None:
    """Make each stored array a thing that search and index know, and add the functions of this file."""
    app.add_object_type("array", "array", objname="stored array", indextemplate="pair: %s; stored array")
    app.connect("source-read", fill)
    app.connect("doctree-read", lead)
    app.connect("autodoc-process-docstring", mend, priority=400)  # before Napoleon's

"""Outlines of pages show each difference between the site and the repository."""

from docs_site.outline import first_difference, page_outline, source_outline

PAGE = """<nav>Menu</nav><article class="md-content__inner"><h1 id="a">A<a class="headerlink"
href="#a">¶</a></h1><p>One <code>two</code>.</p>{}<aside>Date</aside></article><footer>F</footer>"""


def test_equal_pages_have_equal_outlines() -> None:
    page = page_outline(PAGE.format("<ul><li>x</li></ul>"))
    assert page == source_outline("# A\n\nOne `two`.\n- x\n")
    assert page == ["<h1>", "AOne", "<code>", "two.", "<li>", "x"]


def test_lost_list_is_a_difference() -> None:
    page = page_outline(PAGE.format("<p>- x</p>"))
    difference = first_difference(source_outline("# A\n\nOne `two`.\n- x\n"), page)
    assert difference == "'<h1> AOne <code> two. <li> x' became '<h1> AOne <code> two.-x'"


def test_difference_is_shown_with_its_surroundings() -> None:
    words = ["a" * 60, "b", "c" * 60]
    difference = first_difference(words, [words[0], "d", words[2]])
    # 48 letters, a space and the different letter: 50 characters before and after the difference.
    before, after = "a" * 49 + " ", " " + "c" * 48
    assert difference == f"{before + 'b' + after!r} became {before + 'd' + after!r}"
    assert first_difference(words, words) is None


def test_task_list_is_no_difference() -> None:
    page = "<article><ul><li><label><input type=checkbox></label> x</li></ul></article>"
    assert page_outline(page) == source_outline("- [ ] x\n")

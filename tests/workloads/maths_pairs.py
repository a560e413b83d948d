# ruff: noqa: E501 - a table
"""Gold, prediction, verdict: what two answers to a maths problem are to each other."""

CORRECT, WRONG, UNPARSED = "correct", "wrong", "unparsed"

# Decided by exact arithmetic and strings: no worker is asked.
FAST = [
    ("5", "5", CORRECT), ("5", "6", WRONG), ("5", "5.0", CORRECT), ("5", "5.", CORRECT), ("5", " 5 ", CORRECT),
    ("0.5", "\\frac{1}{2}", CORRECT), ("0.5", "1/2", CORRECT), ("0.5", "\\dfrac12", CORRECT), ("0.5", ".5", CORRECT),
    ("\\frac{1}{2}", "\\frac12", CORRECT), ("\\frac{1}{2}", "\\tfrac{1}{2}", CORRECT), ("\\frac{2}{4}", "1/2", CORRECT),
    ("\\frac{1}{3}", "0.333", WRONG), ("\\frac{1}{3}", "0.33333333333", WRONG), ("-\\frac{1}{2}", "-0.5", CORRECT),
    ("-\\frac{1}{2}", "\\frac{-1}{2}", CORRECT), ("\\frac{-1}{2}", "\\frac{1}{-2}", CORRECT), ("1\\frac{1}{2}", "1.5", CORRECT),
    ("1000", "1,000", CORRECT), ("1000000", "1,000,000", CORRECT), ("1000", "1{,}000", CORRECT), ("1234.5", "1,234.50", CORRECT),
    ("1000", "1,00", WRONG), ("72", "$72$", CORRECT), ("72", "\\$72", CORRECT), ("72", "72\\text{ dollars}", CORRECT),
    ("10", "10\\text{ cm}", CORRECT), ("10", "10\\text{ cm}^2", CORRECT), ("10", "10\\mathrm{ kg}", CORRECT),
    ("90", "90^\\circ", CORRECT), ("90", "90^{\\circ}", CORRECT), ("90", "90\\degree", CORRECT), ("90", "91^\\circ", WRONG),
    ("10\\%", "10", CORRECT), ("10", "10%", CORRECT), ("10\\%", "0.1", WRONG), ("0.1", "10\\%", WRONG),
    ("B", "B", CORRECT), ("B", "(B)", CORRECT), ("(B)", "B", CORRECT), ("B", "\\text{B}", CORRECT), ("B", "\\textbf{(B)}", CORRECT),
    ("B", "C", WRONG), ("B", "(C)", WRONG), ("A", "\\text{(A)}", CORRECT), ("B", "B.", CORRECT),
    ("5", "x=5", CORRECT), ("x=5", "5", CORRECT), ("x=5", "x = 5", CORRECT), ("x=5", "x=6", WRONG), ("5", "f(x)=5", CORRECT),
    ("7", "n = 7", CORRECT), ("12", "\\boxed{12}", CORRECT), ("3", "\\displaystyle 3", CORRECT),
    ("-3", "−3", CORRECT), ("-3", "3", WRONG), ("0", "-0", CORRECT), ("+4", "4", CORRECT),
    ("2\\times10^{3}", "2000", CORRECT), ("1.5\\cdot 10^2", "150", CORRECT), ("10^{400}", "10^{400}", CORRECT),
    ("123456789012345678901234567890", "123456789012345678901234567890", CORRECT),
    ("123456789012345678901234567890", "123456789012345678901234567891", WRONG),
    ("\\sqrt2", "\\sqrt{2}", CORRECT), ("\\left(1,2\\right)", "(1, 2)", CORRECT), ("\\text{Evelyn}", "Evelyn", CORRECT),
    ("(1,2)", "(1,\\!2)", CORRECT), ("x^2+1", "x^2 + 1", CORRECT), ("\\pi", "\\pi", CORRECT), ("4\\pi", "4 \\pi", CORRECT),
    ("\\frac{\\pi}{2}", "\\dfrac{\\pi}{2}", CORRECT), ("3/0", "3/0", CORRECT), ("5", "", UNPARSED), ("5", "   ", UNPARSED),
    ("16", "16\\,", CORRECT), ("16", "16\\!", CORRECT), ("16", "~16", CORRECT), ("i", "i", CORRECT), ("\\infty", "\\infin", CORRECT),
]  # fmt: skip

# Lists, tuples, intervals: their shape is decided at once, their items as above or by a worker.
SHAPED = [
    ("(1,2)", "(2,1)", WRONG), ("(1,2)", "1,2", WRONG), ("1,2", "(1,2)", WRONG), ("(1,2)", "[1,2]", WRONG),
    ("1,2", "2,1", CORRECT), ("1,2", "2, 1", CORRECT), ("1,2", "1,2,3", WRONG), ("1,2,3", "3,1,2", CORRECT),
    ("\\{1,2\\}", "\\{2,1\\}", CORRECT), ("\\{1,2\\}", "1,2", CORRECT), ("1,2", "1 and 2", CORRECT), ("1,2", "1 or 2", CORRECT),
    ("(0.5,2)", "(\\frac12,2)", CORRECT), ("(0.5,2)", "(\\frac12,3)", WRONG), ("[0,1)", "[0,1)", CORRECT), ("[0,1)", "[0,1]", WRONG),
    ("[0,1)", "(0,1)", WRONG), ("(3,\\frac{\\pi}{2})", "\\left( 3, \\frac{\\pi}{2} \\right)", CORRECT),
    ("(1,2,3)", "(1,2)", WRONG), ("\\{1\\}", "1", WRONG), ("(1,234)", "1,234", WRONG), ("1234", "(1,234)", WRONG),
    ("-2,1", "x=-2,x=1", CORRECT), ("(-\\infty,3)", "(-\\infty, 3)", CORRECT), ("(-\\infty,3)", "(-\\infty,3]", WRONG),
    ("\\frac{1}{2},\\frac{1}{3}", "\\frac{1}{3},\\frac{1}{2}", CORRECT), ("1;2", "1,2", CORRECT),
]  # fmt: skip

# Algebra: a worker is asked.
ALGEBRA = [
    ("x^2-1", "(x-1)(x+1)", CORRECT), ("x^2-1", "(x-1)(x+2)", WRONG), ("2x+2", "2(x+1)", CORRECT), ("x+y", "y+x", CORRECT),
    ("\\sqrt{8}", "2\\sqrt{2}", CORRECT), ("\\sqrt{8}", "2\\sqrt{3}", WRONG), ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", CORRECT),
    ("2^{10}", "1024", CORRECT), ("2^{10}", "1023", WRONG), ("\\frac{3\\pi}{4}", "0.75\\pi", CORRECT), ("4\\pi", "4", WRONG),
    ("\\sin(\\frac{\\pi}{6})", "\\frac{1}{2}", CORRECT), ("\\log_2 8", "3", CORRECT), ("\\ln(e^2)", "2", CORRECT), ("e", "3", WRONG),
    ("5!", "120", CORRECT), ("5!", "121", WRONG), ("\\frac{1}{2004!}", "\\frac{1}{2006!}", WRONG), ("\\frac{1}{5!}", "\\frac{1}{120}", CORRECT),
    ("\\binom{5}{2}", "10", CORRECT), ("\\binom{5}{2}", "11", WRONG), ("x+1=0", "y-3=0", WRONG), ("x+1=0", "2x+2=0", CORRECT),
    ("y=2x+1", "y-2x-1=0", CORRECT), ("y=2x+1", "y=2x+2", WRONG), ("x^2+y^2=1", "1=x^2+y^2", CORRECT), ("x^2+y^2=1", "x^2+y^2=2", WRONG),
    ("\\frac{x+1}{x}", "1+\\frac{1}{x}", CORRECT), ("\\frac{x+1}{x}", "1+\\frac{2}{x}", WRONG), ("3^{1/2}", "\\sqrt{3}", CORRECT),
    ("(\\sqrt{8},1)", "(2\\sqrt{2},1)", CORRECT), ("(\\sqrt{8},1)", "(2\\sqrt{2},2)", WRONG), ("\\sqrt{8},1", "1,2\\sqrt{2}", CORRECT),
    ("\\frac{a}{b}", "\\frac{b}{a}", WRONG), ("2+3i", "3i+2", CORRECT), ("2+3i", "2-3i", WRONG), ("|x|", "x", WRONG),
    ("\\frac{7}{3}", "2+\\frac{1}{3}", CORRECT), ("10^{-2}", "0.01", CORRECT), ("\\sqrt[3]{27}", "3", CORRECT),
    ("\\cos(0)", "1", CORRECT), ("1-\\frac{1}{e}", "\\frac{e-1}{e}", CORRECT), ("6\\sqrt{3}", "\\sqrt{108}", CORRECT),
    ("12", "3\\cdot4", CORRECT), ("12", "3\\times 5", WRONG), ("\\frac{1}{1+\\frac{1}{2}}", "\\frac{2}{3}", CORRECT),
    ("x^{2}", "x*x", CORRECT), ("2\\pi r", "r2\\pi", CORRECT), ("\\frac{22}{7}", "\\pi", WRONG), ("0.1+0.2", "0.3", CORRECT),
    ("\\text{Evelyn}", "Carla", WRONG), ("n(n+1)/2", "\\frac{n^2+n}{2}", CORRECT),
]  # fmt: skip

PAIRS = [*FAST, *SHAPED, *ALGEBRA]

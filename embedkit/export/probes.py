"""Texts that come with embedkit: golden texts for every bundle, probe texts for exports without labelled pairs."""

from __future__ import annotations

# Short and long texts, several scripts, digits, an emoji of several code points, and a blank text.
GOLDEN_TEXTS = [
    "A man is playing a guitar.",
    "ok",
    "   ",
    "How do I reset the password of my router when I have forgotten the old one?",
    "Déjà vu: naïve café façade, Straße, smørrebrød & crème brûlée — «très bien»!",
    "東京は日本の首都です。 Москва — столица России. القاهرة عاصمة مصر.",
    "In 2024 the price rose by 3.5 % to $1,299.00 (incl. VAT) 🎉 👩‍🚀, see https://example.org/a?b=c#d",
    (
        "The committee met on Thursday to discuss the new budget, which had been delayed twice because several "
        "members disagreed about the cost of repairing the old bridge over the river. After four hours they "
        "agreed to close one lane in the spring, to ask the neighbouring town for half of the money, and to "
        "publish every invoice on the town's own pages, so that anyone who pays for the bridge can also see what "
        "was paid for it. The mayor, who had promised as much before the election, said that it was a small step "
        "but an honest one, and that the second lane would follow in the autumn if the weather and the steel "
        "prices allowed it."
    ),
]

# Each text with the next: a short one with a long one in both orders, and two in other scripts.
GOLDEN_PAIRS = list(zip(GOLDEN_TEXTS, [*GOLDEN_TEXTS[1:], GOLDEN_TEXTS[0]], strict=True))

# Pairs of paraphrases on different subjects, so that the cosines of all pairs range from similar to unrelated.
PROBE_TEXTS = [
    "A woman is slicing tomatoes in the kitchen.",
    "Someone cuts vegetables for dinner.",
    "The train to Berlin is forty minutes late.",
    "Our rail connection was delayed by more than half an hour.",
    "How can I learn to play the piano at home?",
    "What is the best way to teach myself piano?",
    "The central bank raised interest rates again.",
    "Borrowing money becomes more expensive after the latest rate decision.",
    "Two dogs chase each other across the beach.",
    "Puppies are running along the shore.",
    "The vaccine protects most people against severe illness.",
    "Immunisation lowers the risk of serious disease.",
    "My laptop does not start after the update.",
    "Since I installed the new version the computer will not boot.",
    "The novel tells the story of a lighthouse keeper.",
    "It is a book about a man who looks after a lighthouse.",
    "Heavy rain flooded the lower part of the town.",
    "Streets by the river stood under water after the storm.",
    "She scored the winning goal in the last minute.",
    "A late strike decided the football match.",
    "Photosynthesis turns light into chemical energy.",
    "Plants use sunlight to make sugar.",
    "The court rejected the company's appeal.",
    "Judges ruled against the firm for the second time.",
    "How many calories does a banana have?",
    "Is a banana good for losing weight?",
    "The museum opens a show of ancient coins.",
    "Old money from Rome and Greece is on display.",
    "Please send me the invoice by Friday.",
    "I need the bill before the end of the week.",
    "The probe landed on the far side of the moon.",
    "A spacecraft touched down on the lunar surface.",
    "Sort a list of dictionaries by a key in Python.",
    "How do I order records by one field in my code?",
    "The recipe needs two eggs and a cup of flour.",
    "Mix flour, milk and eggs to a smooth dough.",
    "Unemployment fell to its lowest level in ten years.",
    "More people found work than in any year of the decade.",
    "The children built a snowman in front of the school.",
    "Kids are playing in the snow.",
    "Which documents do I need to renew my passport?",
    "What papers are required for a new travel document?",
    "The old bridge is closed for repairs until May.",
    "Drivers must take a detour while the bridge is fixed.",
    "An orchestra plays a symphony in the park.",
    "Musicians give an open-air concert.",
    "The battery of my phone lasts only three hours.",
    "My mobile has to be charged several times a day.",
]

# Each probe text with the next four: some pairs say the same, most are unrelated.
PROBE_PAIRS = [
    (first, PROBE_TEXTS[(row + away) % len(PROBE_TEXTS)])
    for row, first in enumerate(PROBE_TEXTS)
    for away in range(1, 5)
]

"""Transcript lines, and queries for them that share no content word with their line.

The rule of the search by meaning was chosen on ``TUNING``. It was not chosen on ``HELD_OUT``, but
the results on ``HELD_OUT`` were known while rules were tried.
"""

from __future__ import annotations

TUNING = (
    (
        "turn left at the church and then it's the second street on your right",
        "directions to get somewhere",
    ),
    (
        "we shipped the update on friday and by monday half of the customers had complained",
        "many clients were unhappy with the new release",
    ),
    ("add a pinch of salt and let it simmer for ten minutes", "cooking instructions"),
    ("he was born in a tiny fishing village in norway", "where someone grew up in scandinavia"),
    (
        "no dogs allowed on the beach between may and september",
        "pets are forbidden at the seaside in summer",
    ),
    (
        "the defendant pleaded not guilty to all charges",
        "the accused denied having committed any crime",
    ),
    (
        "my laptop won't start since I spilled coffee on it",
        "a computer broke after a drink was poured over it",
    ),
    ("interest rates went up again this quarter", "borrowing money has become more expensive"),
    ("she said yes and we are getting married in june", "a couple announces their engagement"),
    (
        "keep your elbow close to your body when you swing the racket",
        "tips for playing tennis better",
    ),
    ("closed for renovation until further notice", "the shop is shut because of building work"),
    ("I have not slept properly for three weeks because of the baby", "a parent is exhausted"),
    (
        "the glacier has lost a third of its ice since nineteen eighty",
        "the effects of global warming",
    ),
    ("please fasten your seat belts, we are about to land", "announcement on an aeroplane"),
    (
        "they cancelled the concert because the singer had lost her voice",
        "a show was called off due to illness",
    ),
    (
        "my grandmother used to tell us stories about the war",
        "memories of an old relative about fighting",
    ),
    ("you have to press both buttons at the same time to reset it", "how to restart the device"),
    ("unemployment fell to its lowest level in ten years", "more people have jobs than before"),
    (
        "the bridge collapsed just after the lorry had crossed it",
        "a construction over the river fell down",
    ),
    (
        "I quit smoking last year and I feel so much better",
        "giving up cigarettes improved my health",
    ),
    ("wanted: a waiter for weekends, ask inside", "a restaurant is looking for staff"),
    ("the kids built a snowman in front of the school", "children play outside in winter"),
    (
        "our flight was delayed by six hours so we slept on the floor of the airport",
        "passengers had to wait for a very long time",
    ),
    ("this painting was stolen in nineteen ninety and never found again", "a missing work of art"),
    (
        "nobody believed her when she said that she had seen a ghost",
        "a supernatural encounter that others doubted",
    ),
    ("we planted tomatoes and beans behind the garage", "growing vegetables at home"),
    ("the rent is due on the first of every month", "when to pay the landlord"),
    (
        "he scored twice in the last five minutes of the match",
        "a footballer decided the game near the end",
    ),
    (
        "you should see a dentist about that tooth",
        "advice to get medical help for pain in the mouth",
    ),
    ("fifty percent off all shoes this weekend", "a sale in a clothing store"),
    ("the engine makes a strange rattling noise whenever I brake", "my car needs to be repaired"),
    (
        "I am calling about the flat you advertised in the newspaper",
        "someone wants to rent an apartment",
    ),
)
HELD_OUT = (
    (
        "the police arrested two men after a long chase on the motorway",
        "suspects were caught by officers",
    ),
    ("mix the flour with the eggs until the dough is smooth", "how to begin baking a cake"),
    ("I forgot my umbrella so I came home completely soaked", "getting wet in the rain"),
    ("our profits doubled after we moved to the new factory", "the company earned much more money"),
    (
        "she passed her driving test at the fourth attempt",
        "someone finally got a licence for the car",
    ),
    ("caution, wet floor", "be careful, you may slip here"),
    ("the volcano erupted without any warning during the night", "a sudden natural disaster"),
    ("my brother plays the drums in a jazz band", "a relative who is a musician"),
    (
        "the doctor told me to drink more water and to eat less sugar",
        "medical advice about nutrition",
    ),
    ("they found the missing boy asleep in a barn", "a lost child was discovered safe"),
    ("tickets are sold out until the end of the year", "no seats are available any more"),
    (
        "the government wants to raise taxes on petrol",
        "fuel will become more expensive because of politicians",
    ),
    (
        "hold the guitar like this and press the string with your finger",
        "lesson for learning an instrument",
    ),
    (
        "I was so nervous before the interview that I couldn't speak",
        "being afraid when applying for a job",
    ),
    ("staff only beyond this point", "visitors must not enter this area"),
    ("the old theatre burned down in nineteen twelve", "a historic building was destroyed by fire"),
    ("we adopted a three legged cat from the shelter", "taking in a disabled pet"),
    (
        "your call is important to us, please stay on the line",
        "waiting on the telephone for customer service",
    ),
    ("the satellite will reach its orbit on thursday morning", "news about a spacecraft"),
    ("he apologised for being late and blamed the traffic", "an excuse for not arriving on time"),
    (
        "it has not rained here for five months and the wells are dry",
        "a drought causes lack of water",
    ),
    (
        "stretch your legs for a few minutes after every run",
        "what athletes should do to avoid injuries",
    ),
    (
        "I deleted the wrong folder and all my photos are gone",
        "losing pictures by mistake on a computer",
    ),
    ("the queen opened the new hospital this afternoon", "a royal visit to a medical building"),
    ("free entry for children under six", "young kids do not have to pay"),
    (
        "they argued about money all the time and then they divorced",
        "a marriage ended because of financial quarrels",
    ),
    (
        "my neighbour plays loud music until three in the morning",
        "noise keeps someone awake at night",
    ),
    ("the shark swam right under our boat", "a dangerous fish came close to a vessel"),
    ("we ran out of petrol in the middle of the desert", "stranded in a dry place without fuel"),
    (
        "I would like to return these shoes, they are too small",
        "a customer brings back something that does not fit",
    ),
    ("this bread is baked every morning in a wood oven", "traditional way of making food"),
    (
        "the teacher gave us far too much homework for the holidays",
        "pupils complain about school work",
    ),
)

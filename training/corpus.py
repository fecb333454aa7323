"""The text the embedded model learns from: seeded, generated, and entirely our own.

Nothing here is downloaded, so the weights carry nobody else's licence and can be rebuilt from
this file. Values (names, towns, goods) are words from our lists or invented from syllables.
`is_held_out` splits *words*, not examples, so a held-out prompt contains only values that
training never showed and an exact answer can only come from copying the prompt. (The animals of
stories are not split.)
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

Json: TypeAlias = str | int | float | bool | list[str]
Task: TypeAlias = "Callable[[Speaker], Example]"
T = TypeVar("T")


def words(text: str) -> tuple[str, ...]:
    """A list of words, as short to write as to read."""
    return tuple(text.split())


@dataclass(frozen=True)
class Example:
    """One prompt and the only answer that counts as right (of a story: one of many)."""

    task: str
    prompt: str
    answer: str
    mentions: tuple[str, ...] = ()  # what any good story for this prompt must mention


FIRST_NAMES = words(
    """
    Max Ben Eli Nora Ida Mila Omar Lena Hugo Iris Tara Finn Rosa Leo Maya Otto Vera Nils Anna
    Karl Emma Jonas Clara Felix Luca Marta Pablo Sofia Diego Elena Marco Julia Peter Paula Simon
    Greta Oscar Alma Viktor Sara David Ruth Daniel Esther Samuel Judith Tomas Irina Pavel Olga
    Anton Nadia Boris Tanya Yusuf Leila Karim Amina Hassan Fatima Tariq Zara Kenji Yuki Hiro
    Naomi Akira Emi Wei Ling Jun Mei Ravi Priya Arjun Anita Vikram Meera Sanjay Kavya Kofi Ama
    Kwame Abena Chidi Ngozi Tunde Amara Liam Grace Noah Alice Ethan Chloe Mason Ruby Logan Hazel
    Owen Ivy Dylan Freya Rhys Megan Callum Isla Bruno Carla Nico Lidia Matteo Giulia Andre Ines
    Rui Lara Gustav Astrid Erik Sigrid Lars Ingrid Henrik Maja Piotr Zofia Jakub Hanna Milan
    Petra Ivan Dora Tim Sam Kim Alex Robin Jo Ada Alan Bella Cora Della Edgar Flora Gavin Holly
    Igor June Kurt Lola Myra Ned Opal Perry Quinn Rita Seth Tess Ursula Vince Wendy Xenia Yara
    Zeno
    """
)

SURNAMES = words(
    """
    Tanaka Kim Silva Novak Okafor Larsen Costa Weber Rossi Mbeki Patel Khan Haddad Ivanov Moreau
    Dubois Jensen Nielsen Kowalski Horvat Petrov Garcia Lopez Torres Mendes Suzuki Sato Chen
    Wang Singh Gupta Mensah Osei Adeyemi Brown Clark Hill Stone Field Marsh Brook Wood Baker
    Fisher Cooper Turner Porter Mason Carter Shaw Reed Frost Lane Hart Bell Ward Page Cole Fox
    Drake Swan Finch Vogel Braun Koch Fuchs Berg Lund Holm Dahl Strand Nagy Kovacs Popov Orlov
    Sokolov Aziz Rahman Nasser Amari Diallo Traore Keita Ruiz Vega Ramos Pinto Duarte Ricci
    Greco Conti Marino Leroy Laurent Petit Visser Bakker Smit Murphy Kelly Byrne Walsh Evans
    Price Lloyd
    """
)

CITIES = words(
    """
    Warsaw Lima Oslo Cairo Paris Berlin Madrid Rome Vienna Prague Dublin Lisbon Athens Helsinki
    Riga Tallinn Vilnius Zagreb Sofia Tunis Rabat Accra Lagos Nairobi Kampala Harare Lusaka
    Dakar Tokyo Osaka Kyoto Seoul Busan Taipei Hanoi Bangkok Manila Jakarta Delhi Mumbai Pune
    Chennai Karachi Lahore Dhaka Kabul Tehran Baghdad Amman Beirut Ankara Izmir Toronto Montreal
    Ottawa Boston Chicago Denver Dallas Houston Seattle Portland Austin Miami Havana Bogota
    Quito Santiago Montevideo Brasilia Recife Sydney Perth Hobart Auckland Geneva Zurich Bern
    Basel Graz Linz Milan Turin Naples Genoa Porto Seville Bilbao Lyon Nantes Lille Ghent Bruges
    Utrecht Leiden Malmo Bergen Aarhus Turku Gdansk Krakow Brno Split Leeds York Bath Cork
    Cardiff Dundee
    """
)

JOBS = words(
    """
    lawyer judge doctor nurse teacher baker farmer pilot driver plumber carpenter painter writer
    editor singer dancer actor chef waiter barber tailor butcher florist gardener miner sailor
    fisherman soldier guard clerk cashier banker broker auditor accountant analyst engineer
    architect chemist physicist biologist geologist astronomer historian librarian translator
    journalist reporter photographer designer programmer mechanic electrician welder roofer
    surgeon dentist pharmacist vet therapist coach referee detective firefighter postman courier
    porter cleaner janitor potter weaver jeweler watchmaker blacksmith shepherd beekeeper
    winemaker brewer optician midwife paramedic tutor professor student researcher surveyor
    planner consultant manager director secretary
    """
)

GOODS = words(
    """
    lamp chair table desk sofa shelf mirror clock kettle toaster blender oven pan pot knife
    spoon fork plate bowl cup mug glass bottle jar basket bucket broom ladder hammer saw drill
    wrench screwdriver rope tent backpack suitcase wallet belt jacket coat shirt sweater scarf
    hat glove boot sandal sneaker sock umbrella guitar violin piano drum flute trumpet camera
    tripod phone tablet laptop keyboard mouse monitor printer speaker headset charger cable
    battery notebook pencil pen marker stapler folder envelope puzzle kite doll ball bicycle
    helmet scooter skateboard canoe paddle pillow blanket towel curtain carpet vase candle rug
    crate fan heater radio watch ring necklace bracelet telescope microscope compass
    """
)

FOODS = words(
    """
    apple pear plum peach cherry grape lemon lime orange banana mango melon fig date kiwi berry
    carrot onion potato tomato pepper garlic celery radish turnip beet cabbage spinach lettuce
    leek bean pea corn rice pasta bread cheese butter milk yogurt egg honey sugar salt flour
    oats tea coffee juice soup salad cake pie cookie muffin waffle bagel noodle olive almond
    walnut ginger basil mint
    """
)

COLORS = words(
    """
    red blue green yellow black white gray brown pink purple orange silver gold beige teal navy
    maroon olive cyan violet ivory amber crimson copper
    """
)

ANIMALS = words(
    """
    dog cat rabbit fox bear owl duck goat pony mouse turtle frog hen lamb parrot squirrel
    hedgehog deer otter seal penguin donkey calf wolf badger beaver robin swan crow pig
    """
)

HOBBIES = words(
    """
    chess painting hiking cycling swimming fishing knitting cooking baking dancing running
    sailing climbing skiing surfing gardening reading singing drawing pottery archery fencing
    yoga judo boxing rowing origami photography
    """
)

COUNTRIES = words(
    """
    Poland Peru Norway Egypt France Germany Spain Italy Austria Ireland Portugal Greece Finland
    Latvia Estonia Croatia Bulgaria Tunisia Morocco Ghana Nigeria Kenya Uganda Zambia Senegal
    Japan Korea Vietnam Thailand India Pakistan Iran Iraq Jordan Lebanon Turkey Canada Cuba
    Colombia Ecuador Chile Uruguay Brazil Australia Switzerland Belgium Sweden Denmark Hungary
    Romania
    """
)

OCCASIONS = words(
    """
    concert lecture workshop meeting wedding picnic festival parade exhibition seminar
    conference dinner breakfast lunch party ceremony debate tournament race match auction fair
    show play opera recital reunion gala market tour hike rehearsal training hearing
    """
)

PLACES = words(
    """
    library museum theater stadium park garden school church gym cafe restaurant hotel harbor
    station airport market square gallery studio office factory barn castle tower bridge beach
    lake forest hall arena clinic bakery
    """
)

ADJECTIVES = words(
    """
    small big old young quiet loud happy sad brave shy clever kind bright dark soft hard warm
    cold clean dusty heavy light round flat tall short thin wide smooth rough quick slow gentle
    wild sweet bitter fresh dry wet strong simple plain fancy lucky lonely hungry sleepy curious
    """
)

FIELD_NOUNS = words(
    """
    owner driver depot sender receiver leader guest winner loser captain editor planner sponsor
    origin target route gate level score rank total limit weight height width length depth speed
    count batch model brand vendor client agent branch region zone street room floor shelf label
    code status topic subject genre language material flavor shape season team league channel
    device version mode source host port user group file folder project task sprint stage phase
    grade course major pilot crew vessel cargo signal planet crop
    """
)

MONTHS = words(
    """
    January February March April May June July August September October November December
    """
)

ONSETS = words(
    "b c d f g h j k l m n p r s t v w z br cr dr fr gr kr pr tr bl fl gl pl sh ch th st sk"
)
VOWELS = words("a e i o u a e i o u ai ei ou ia oa ea")
CODAS = ["", "", "", "n", "r", "l", "s", "k", "m", "t", "d", "x", "nd", "rt", "ll", "st", "ck", "v"]
ALL_WORDS = (
    *(FIRST_NAMES + SURNAMES + CITIES + JOBS + GOODS + FOODS + COLORS + ANIMALS + HOBBIES),
    *(COUNTRIES + OCCASIONS + PLACES + ADJECTIVES + FIELD_NOUNS + MONTHS),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def is_held_out(word: str) -> bool:
    """Whether training must never show this word as a value: one word in eight, by hash."""
    return zlib.crc32(word.lower().encode()) % 8 == 0


def to_json(value: Json | dict[str, Json]) -> str:
    """Spell JSON as a grammar with fixed whitespace does: `", "` between, `": "` after a key."""
    return json.dumps(value, ensure_ascii=False)


def a(noun: str) -> str:
    """Put the indefinite article before a noun; by spelling, which is right for our words."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


@dataclass
class Speaker:
    """A seeded source of words that stays on one side of the held-out split."""

    random: random.Random
    held_out: bool = False
    invented: float = 0.2  # how often a made-up word stands in for one from a list

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def pick(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def some(self, options: Sequence[T], low: int, high: int) -> list[T]:
        return self.random.sample(options, min(len(options), self.random.randint(low, high)))

    def invent(self, syllables: tuple[int, int] = (1, 3)) -> str:
        """A pronounceable word no list contains, on our side of the split."""
        while True:
            if not self.held_out and self.chance(0.35):
                word = self.splice()
            else:
                n = self.random.randint(*syllables)
                word = "".join(self.pick(ONSETS) + self.pick(VOWELS) for _ in range(n))
                word += self.pick(CODAS)
            if len(word) > 2 and is_held_out(word) == self.held_out:
                return word

    def splice(self) -> str:
        """The start of one word and the end of another, so every token is copied at times.

        Else tokens that occur only in held-out words, or only outside values, never are.
        """
        head, tail = self.pick(ALL_WORDS).lower(), self.pick(ALL_WORDS).lower()
        return head[: self.random.randint(2, len(head))] + tail[self.random.randint(1, len(tail)) :]

    def word(self, words: Sequence[str]) -> str:
        """A value from the list or, sometimes, an invented one in its place."""
        if self.chance(self.invented):
            made = self.invent()
            return made.capitalize() if words[0][0].isupper() else made
        while True:
            word = self.pick(words)
            if is_held_out(word) == self.held_out:
                return word

    def first(self) -> str:
        return self.word(FIRST_NAMES)

    def surname(self) -> str:
        return self.invent().capitalize() if self.chance(0.6) else self.word(SURNAMES)

    def person(self) -> str:
        roll = self.random.random()
        if roll < 0.8:
            return f"{self.first()} {self.surname()}"
        if roll < 0.9:
            return f"{self.first()} {self.pick(LETTERS).upper()}. {self.surname()}"
        return f"{self.first()} {self.surname()}-{self.surname()}"

    def city(self) -> str:
        if self.chance(0.1):
            return f"{self.pick(('New', 'San', 'Port', 'North', 'Saint'))} {self.word(CITIES)}"
        return self.word(CITIES)

    def goods(self) -> str:
        roll = self.random.random()
        noun = self.word(GOODS)
        if roll < 0.6:
            return noun
        return f"{self.word(ADJECTIVES if roll < 0.8 else COLORS)} {noun}"

    def title(self) -> str:
        """A capitalised name of two or three words, as for a book, company or event."""
        words = [self.word(ADJECTIVES), self.word(self.pick((GOODS, ANIMALS, PLACES, FOODS)))]
        if self.chance(0.3):
            words.insert(0, "the")
        return " ".join(w.capitalize() for w in words)

    def company(self) -> str:
        tail = self.pick(("Labs", "Works", "Foods", "Group", "Motors", "Books", "Systems", "Ltd"))
        return f"{self.surname()} {tail}"

    def integer(self, low: int = 1, high: int = 999) -> int:
        """Uniform in the number of digits first: uniform values would nearly all be long."""
        digits = self.random.randint(len(str(low)), len(str(high)))
        return self.random.randint(
            max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1)
        )

    def price(self) -> int | float:
        """Whole, or with cents that end in no zero, so the JSON number is the text as written."""
        if self.chance(0.5):
            return self.integer(1, 999)
        cents = self.random.randint(1, 9) if self.chance(0.2) else self.random.randint(1, 99)
        return float(f"{self.integer(1, 200)}.{cents:02d}".rstrip("0"))

    def code(self) -> str:
        letters = "".join(self.pick(LETTERS).upper() for _ in range(self.random.randint(1, 3)))
        return f"{letters}{self.pick(('-', '', '-'))}{self.random.randint(10, 99999)}"

    def day(self) -> str:
        d, month, year = self.random.randint(1, 28), self.pick(MONTHS), self.year()
        return self.pick(
            (
                f"{d} {month} {year}",
                f"{month} {d}",
                f"{d} {month}",
                f"{year}-{MONTHS.index(month) + 1:02d}-{d:02d}",
                self.pick(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Sunday")),
            )
        )

    def year(self) -> int:
        return self.random.randint(1900, 2039)

    def time(self) -> str:
        hour = self.random.randint(0, 23)
        return f"{hour:02d}:{self.random.choice((0, 15, 30, 45, self.random.randint(0, 59))):02d}"


@dataclass(frozen=True)
class Domain:
    """What a kind of text is about: its fields, and the clauses that can state them."""

    name: str
    fields: dict[str, Callable[[Speaker], Json]]
    sentences: tuple[str, ...]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)


DOMAINS = (
    Domain(
        "person",
        {
            "name": Speaker.person,
            "age": lambda s: s.integer(2, 99),
            "job": lambda s: s.word(JOBS),
            "city": Speaker.city,
            "hobby": lambda s: s.word(HOBBIES),
            "company": Speaker.company,
            "country": lambda s: s.word(COUNTRIES),
        },
        (
            "{name}, {age}, is {a:job} in {city}.",
            "{name} is {age} years old and works as {a:job} in {city}.",
            "{name} is {a:job} from {city}. {name} is {age}.",
            "In {city} lives {name}, {a:job} aged {age}.",
            "{name} ({age}) from {city} works as {a:job} at {company}.",
            "Meet {name}, a {age}-year-old {job} who lives in {city} and loves {hobby}.",
            "My name is {name}. I am {age}, I live in {city} and I work as {a:job}.",
            "At {age}, {name} moved to {city} to work as {a:job}.",
            "The {job} {name} was born in {country} and is now {age} years old.",
            "{company} hired {name}, {a:job} from {city}, {country}.",
            "{name} lives in {city}, {country}. Job: {job}. Age: {age}.",
            "{a:job:cap} named {name} lives in {city} and enjoys {hobby}.",
            "{name}, who is {age}, enjoys {hobby} in {city}.",
            "After work at {company}, the {age}-year-old {job} {name} goes {hobby}.",
            "Our new {job} is {name}, {age}, from {country}.",
            "{name} / {age} / {job} / {city}",
            "name: {name}; age: {age}; job: {job}; city: {city}",
            "{city} {job} {name}, {age}, likes {hobby}.",
        ),
        {"name": ("person", "full_name"), "job": ("occupation", "profession"), "city": ("town",)},
    ),
    Domain(
        "order",
        {
            "customer": Speaker.person,
            "item": Speaker.goods,
            "quantity": lambda s: s.integer(2, 999),
            "price": Speaker.price,
            "city": Speaker.city,
            "order_id": Speaker.code,
        },
        (
            "{customer} ordered {quantity} units of {item} for ${price}.",
            "{customer} bought {quantity} x {item} at {price} dollars each.",
            "Order {order_id}: {quantity} of the {item} for {customer} in {city}.",
            "Please send {quantity} pieces of {item} to {customer}, {city}.",
            "{customer} from {city} wants {a:item} for ${price}.",
            "Order {order_id} by {customer} costs ${price} and goes to {city}.",
            "We shipped {quantity} {item} boxes to {customer} in {city} for {price} euros.",
            "{customer} paid {price} for {quantity} of the {item} (order {order_id}).",
            "Item: {item}. Quantity: {quantity}. Customer: {customer}. Price: {price}.",
            "For {price} dollars, {customer} got {a:item}. The order number is {order_id}.",
            "{order_id} | {customer} | {item} | {quantity} | {price}",
            "Deliver {order_id} to {city}: {quantity} times {item}, {price} euros, for {customer}.",
        ),
        {"customer": ("buyer", "client"), "item": ("product",), "quantity": ("count", "amount")},
    ),
    Domain(
        "event",
        {
            "event": lambda s: s.word(OCCASIONS),
            "date": Speaker.day,
            "time": Speaker.time,
            "place": lambda s: s.word(PLACES),
            "city": Speaker.city,
            "guests": lambda s: s.integer(2, 9999),
            "host": Speaker.person,
        },
        (
            "The {event} takes place on {date} at {time} in the {place}.",
            "{host} hosts {a:event} in {city} on {date}.",
            "On {date}, {guests} guests came to the {event} in {city}.",
            "Join {host} for {a:event} at the {place} on {date}, {time}.",
            "We expect {guests} people at the {event} in the {place} of {city}.",
            "The {event} in {city} starts at {time} on {date} and {guests} seats are taken.",
            "{host} invited {guests} guests to the {event} at the {place}.",
            "Reminder: {event}, {date}, {time}, {place}.",
            "At {time} the {event} begins at the {place}. {host} will speak.",
            "{city}, {date}: {a:event} with {guests} visitors, led by {host}.",
            "event: {event}; date: {date}; city: {city}; guests: {guests}",
        ),
        {"place": ("venue", "location"), "guests": ("attendees",), "host": ("organizer",)},
    ),
    Domain(
        "product",
        {
            "product": Speaker.goods,
            "brand": Speaker.company,
            "color": lambda s: s.word(COLORS),
            "price": Speaker.price,
            "stock": lambda s: s.integer(1, 9999),
            "weight": lambda s: s.integer(1, 999),
            "in_stock": lambda s: s.chance(0.5),
        },
        (
            "The {product} by {brand} comes in {color} and costs ${price}.",
            "{brand} sells {a:product} for {price} euros. There are {stock} left.",
            "Our {color} version of the {product} weighs {weight} grams and costs {price}.",
            "New from {brand}: {product}, {color}, {weight} g, ${price}.",
            "We have {stock} pieces of the {product} in {color} at ${price} each.",
            "For ${price} you get the {product}. It is {in_stock:available|sold out}.",
            "The {product} from {brand} is {in_stock:in stock|out of stock} and costs {price}.",
            "{product:cap}, color {color}, made by {brand}, {stock} in the store.",
            "{a:product:cap} weighs {weight} grams. It is {color} and {brand} makes it.",
            "{product} - {brand} - {color} - {price}",
        ),
        {"product": ("item", "article"), "brand": ("maker",), "color": ("colour",)},
    ),
    Domain(
        "trip",
        {
            "passenger": Speaker.person,
            "origin": Speaker.city,
            "destination": Speaker.city,
            "date": Speaker.day,
            "flight": Speaker.code,
            "price": Speaker.price,
        },
        (
            "{passenger} flies from {origin} to {destination} on {date}.",
            "Flight {flight} takes {passenger} from {origin} to {destination}.",
            "On {date}, {passenger} leaves {origin} for {destination} with flight {flight}.",
            "A ticket from {origin} to {destination} on {date} costs ${price}.",
            "{passenger} goes to {destination}, starting in {origin}, for {price} dollars.",
            "Book {flight} for {passenger}: {origin} - {destination}, {date}, {price} euros.",
            "The trip to {destination} begins in {origin} on {date}. Passenger: {passenger}.",
        ),
        {"origin": ("from",), "destination": ("to",), "passenger": ("traveler", "name")},
    ),
    Domain(
        "book",
        {
            "title": Speaker.title,
            "author": Speaker.person,
            "year": Speaker.year,
            "pages": lambda s: s.integer(20, 1500),
            "publisher": Speaker.company,
        },
        (
            '"{title}" by {author} was published in {year} and has {pages} pages.',
            'In {year}, {author} wrote "{title}".',
            "{author} is the author of {title} ({year}).",
            "{publisher} printed {title} by {author} in {year}.",
            "{title} has {pages} pages. {author} wrote it in {year} for {publisher}.",
            "The novel {title}, {pages} pages, came out at {publisher} in {year}.",
            "I just read {title} by {author}. All {pages} pages are good.",
        ),
        {"author": ("writer",), "title": ("book",)},
    ),
    Domain(
        "pet",
        {
            "name": Speaker.first,
            "species": lambda s: s.word(ANIMALS),
            "age": lambda s: s.integer(1, 30),
            "owner": Speaker.person,
            "color": lambda s: s.word(COLORS),
            "city": Speaker.city,
        },
        (
            "{name} is {a:color} {species}, {age} years old, and belongs to {owner}.",
            "{owner} has {a:species} called {name}.",
            "The {species} {name} lives with {owner} in {city}.",
            "{name} the {species} is {age}. The owner is {owner} from {city}.",
            "Lost in {city}: {a:species} named {name}, {color}, {age} years old.",
            "{owner} brought {name}, a {age}-year-old {species}, to the clinic in {city}.",
        ),
        {"species": ("animal", "kind"), "name": ("pet",)},
    ),
    Domain(
        "ticket",
        {
            "id": Speaker.code,
            "priority": lambda s: s.pick(("low", "medium", "high", "urgent")),
            "assignee": Speaker.person,
            "component": lambda s: s.word(FIELD_NOUNS),
            "reporter": Speaker.person,
            "days": lambda s: s.integer(1, 99),
        },
        (
            "Ticket {id} ({priority}) about the {component} is assigned to {assignee}.",
            "{reporter} reported a {priority} problem in the {component}: {id}.",
            "{assignee} works on {id}, a {priority} priority bug found by {reporter}.",
            "Bug {id} in {component} has been open for {days} days. Priority: {priority}.",
            "Priority {priority}: {reporter} wants {assignee} to fix {component} in {days} days.",
        ),
        {"assignee": ("owner",), "component": ("module",), "priority": ("severity",)},
    ),
)

INSTRUCTIONS = (
    "Extract {fields} as JSON: {text}",
    "Extract {fields} as JSON: {text}",
    "Extract {fields} as JSON.\n{text}",
    "Extract the {fields} as JSON: {text}",
    "Extract the {fields} from this text as JSON: {text}",
    "{text}\nExtract {fields} as JSON.",
    "Return {fields} as a JSON object: {text}",
    "Return a JSON object with the keys {fields}.\nText: {text}",
    "Read the text and give {fields} in JSON.\n\n{text}",
    "Text: {text}\nFields: {fields}\nJSON:",
    "Give me {fields} as JSON. {text}",
    "Convert to JSON with {fields}: {text}",
    "From the sentence below, extract {fields} as JSON.\n{text}",
    "What are the {fields} here? Answer in JSON. {text}",
    "{text} Write {fields} as JSON.",
    "Extract JSON ({fields}) from: {text}",
)
WHOLE_INSTRUCTIONS = (
    "Extract the {domain} as JSON: {text}",
    "Extract the {domain} from this text as JSON.\n{text}",
    "Convert this {domain} to JSON: {text}",
)
DISTRACTORS = (
    "It was a {adj} day.",
    "Please answer soon.",
    "The weather was {adj}.",
    "Thank you!",
    "This is urgent.",
    "Nobody was surprised.",
    "We will call back.",
    "See you there.",
    "Everyone was {adj}.",
    "Here is the note.",
    "Hello,",
)


def listed(s: Speaker, words: Sequence[str]) -> str:
    """Join words as a person would: with commas, and often "and" before the last."""
    if len(words) > 1 and s.chance(0.6):
        return f"{', '.join(words[:-1])} and {words[-1]}"
    return ", ".join(words)


def fill(sentence: str, values: dict[str, Json]) -> str:
    """Put the values in: `{f}`, `{a:f}` with its article, `{f:cap}`, `{flag:yes|no}`."""
    parts = sentence.split("{")
    text = parts[0]
    for part in parts[1:]:
        slot, rest = part.split("}", 1)
        article = slot.startswith("a:")
        name, _, mode = slot.removeprefix("a:").partition(":")
        value = values[name]
        if isinstance(value, bool):
            yes, _, no = mode.partition("|")
            said = yes if value else no
        else:
            said = a(str(value)) if article else str(value)
            if mode == "cap":
                said = said[0].upper() + said[1:]
        text += said + rest
    return text


def slots(sentence: str) -> list[str]:
    """The fields a sentence states, in the order it first states them, less those it recases."""
    found: list[str] = []
    recased: set[str] = set()
    for part in sentence.split("{")[1:]:
        slot = part.split("}", 1)[0]
        name, _, mode = slot.removeprefix("a:").partition(":")
        if mode == "cap" and not slot.startswith("a:"):
            recased.add(name)
        if name not in found:
            found.append(name)
    return [name for name in found if name not in recased]


def with_distractors(s: Speaker, text: str) -> str:
    """Sometimes surround the text with sentences that say nothing asked for."""
    if s.chance(0.1):
        text = f"{s.pick(DISTRACTORS).format(adj=s.pick(ADJECTIVES))} {text}"
    if s.chance(0.1):
        text = f"{text} {s.pick(DISTRACTORS[:-2]).format(adj=s.pick(ADJECTIVES))}"
    return text


def extract(s: Speaker) -> Example:
    """Fields of one sentence as a JSON object, in the order the prompt asks for them."""
    domain = s.pick(DOMAINS[:4]) if s.chance(0.7) else s.pick(DOMAINS)
    sentence = s.pick(domain.sentences)
    values = {name: make(s) for name, make in domain.fields.items()}
    text = with_distractors(s, fill(sentence, values))
    stated = slots(sentence)
    if s.chance(0.08):
        wanted = [name for name in domain.fields if name in stated]
        instruction = s.pick(WHOLE_INSTRUCTIONS)
    else:
        wanted = stated if s.chance(0.4) else s.some(stated, 1, len(stated))
        if s.chance(0.3):
            wanted = [name for name in domain.fields if name in wanted]
        instruction = s.pick(INSTRUCTIONS)
    keys = {
        name: s.pick(domain.aliases[name]) if name in domain.aliases and s.chance(0.08) else name
        for name in wanted
    }
    if len(set(keys.values())) < len(keys) or "{domain}" in instruction:
        keys = {name: name for name in wanted}
    answer = to_json({key: values[name] for name, key in keys.items()})
    prompt = instruction.format(
        fields=listed(s, list(keys.values())), text=text, domain=domain.name
    )
    return Example("extract", prompt, answer)


def extract_facts(s: Speaker) -> Example:
    """Extraction with arbitrary keys, so a key is matched by its spelling and not by habit."""
    makers: tuple[Callable[[Speaker], Json], ...] = (
        Speaker.person,
        Speaker.first,
        Speaker.city,
        Speaker.goods,
        lambda s: s.word(COLORS),
        lambda s: s.integer(1, 99999),
        Speaker.code,
        Speaker.invent,
    )
    nouns = [n if s.chance(0.8) else s.invent() for n in s.some(FIELD_NOUNS, 2, 5)]
    facts = {noun: s.pick(makers)(s) for noun in nouns}
    form = s.pick(
        ("The {k} is {v}.", "{k}: {v}", "{k} = {v};", "The {k} was {v}.", "{v} is the {k}.")
    )
    text = " ".join(form.format(k=k, v=v) for k, v in facts.items())
    wanted = s.some(list(facts), 1, len(facts))
    prompt = s.pick(INSTRUCTIONS).format(fields=listed(s, wanted), text=text)
    return Example("extract_facts", prompt, to_json({k: facts[k] for k in wanted}))


def extract_list(s: Speaker) -> Example:
    """An object with an array in it: who bought what."""
    name, things = (
        s.person(),
        [s.word(s.pick((FOODS, GOODS))) for _ in range(s.random.randint(2, 5))],
    )
    text = s.pick(
        (
            "{name} bought {things}.",
            "{name} needs {things} for dinner.",
            "The shopping list of {name}: {things}.",
            "In the bag of {name} there were {things}.",
        )
    ).format(name=name, things=listed(s, things))
    keys = ["name", "items"] if s.chance(0.6) else ["items", "name"] if s.chance(0.5) else ["items"]
    values: dict[str, Json] = {"name": name, "items": things}
    prompt = s.pick(INSTRUCTIONS).format(fields=listed(s, keys), text=with_distractors(s, text))
    return Example("extract_list", prompt, to_json({k: values[k] for k in keys}))


def copy(s: Speaker) -> Example:
    """Say it again. The plainest need for induction, so the first thing taught."""
    n = s.random.randint(2, 10)
    kind = s.random.random()
    if kind < 0.5:
        words = [s.invent() for _ in range(n)]
    elif kind < 0.7:
        words = [
            s.invent().capitalize() if s.chance(0.5) else str(s.integer(1, 9999)) for _ in range(n)
        ]
    elif kind < 0.85:
        words = [s.word(s.pick((GOODS, FOODS, JOBS, FIRST_NAMES, CITIES))) for _ in range(n)]
    else:
        words = ["".join(s.pick(LETTERS) for _ in range(s.random.randint(1, 6))) for _ in range(n)]
    text = s.pick((" ", " ", ", ")).join(words)
    said = s.pick(("Repeat: {}", "Copy: {}", "Say this again: {}", "Repeat the text: {}"))
    if s.chance(0.2):
        return Example("copy", f"Write as a JSON string: {text}", to_json(text))
    return Example("copy", said.format(text), text)


def lookup(s: Speaker) -> Example:
    """One value by its key: extraction with everything else taken away."""
    keys = list(dict.fromkeys(s.invent((1, 2)) for _ in range(s.random.randint(2, 6))))
    values = [s.person() if s.chance(0.4) else s.invent() for _ in keys]
    table = s.pick((", ", "; ")).join(f"{k} is {v}" for k, v in zip(keys, values, strict=True))
    chosen = s.random.randrange(len(keys))
    return Example("lookup", f"{table}. What is {keys[chosen]}?", values[chosen])


def to_array(s: Speaker) -> Example:
    """A list in prose as a JSON array."""
    words = [
        s.word(s.pick((FOODS, GOODS, CITIES, FIRST_NAMES))) for _ in range(s.random.randint(2, 7))
    ]
    said = s.pick(
        ("List as a JSON array: {}", "Convert to a JSON array: {}.", "Make a JSON list of {}.")
    )
    return Example("to_array", said.format(listed(s, words)), to_json(words))


GOOD = words("great wonderful lovely excellent perfect amazing fantastic superb charming")
BAD = words("terrible awful boring broken horrible useless dirty disappointing dreadful ugly")


def sentiment(s: Speaker) -> Example:
    """Two-way classification, bare or in an object."""
    good = s.chance(0.5)
    review = s.pick(
        (
            "The {thing} was {word}.",
            "What a {word} {thing}!",
            "I think this {thing} is {word}.",
            "{word:cap} {thing}, really.",
            "My {thing} turned out to be {word}.",
        )
    )
    values: dict[str, Json] = {
        "thing": s.word(s.pick((GOODS, FOODS))),
        "word": s.pick(GOOD if good else BAD),
    }
    text = fill(review, values)
    label = "positive" if good else "negative"
    if s.chance(0.4):
        return Example(
            "sentiment", f"Classify the sentiment as JSON: {text}", to_json({"sentiment": label})
        )
    if s.chance(0.5):
        return Example("sentiment", f"Is this review positive or negative? {text}", label)
    return Example("sentiment", f"Does the writer like it? {text}", "yes" if good else "no")


def membership(s: Speaker) -> Example:
    """Yes or no: is the word in the list?"""
    words = list(dict.fromkeys(s.word(FOODS) for _ in range(s.random.randint(3, 6))))
    inside = s.chance(0.5)
    asked = s.pick(words) if inside else s.word(FOODS)
    said = f"Is {asked} in this list? {', '.join(words)}"
    return Example("membership", said, "yes" if asked in words else "no")


def reorder(s: Speaker) -> Example:
    """Sort a few words by their first letters."""
    words = list(dict.fromkeys(s.word(FOODS) for _ in range(s.random.randint(2, 4))))
    return Example("sort", f"Sort: {', '.join(words)}", ", ".join(sorted(words)))


def uppercase(s: Speaker) -> Example:
    words = s.some([w for w in FOODS + ANIMALS if is_held_out(w) == s.held_out], 1, 3)
    text = " ".join(words)
    return Example("uppercase", f"Write in upper case: {text}", text.upper())


def number_format(s: Speaker) -> Example:
    n = s.integer(1000, 9_999_999)
    return Example("number_format", f"Add thousands separators: {n}", f"{n:,}")


def date_format(s: Speaker) -> Example:
    d, m, year = s.random.randint(1, 28), s.random.randrange(12), s.year()
    said = s.pick((f"{d} {MONTHS[m]} {year}", f"{MONTHS[m]} {d}, {year}"))
    return Example(
        "date_format", f"Write the date as YYYY-MM-DD: {said}", f"{year}-{m + 1:02d}-{d:02d}"
    )


def addition(s: Speaker) -> Example:
    x, y = s.random.randint(0, 12), s.random.randint(0, 12)
    return Example("addition", f"What is {x} + {y}?", str(x + y))


SMALL_TALK = {
    "Hello": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "Who are you?": "I am a tiny model that comes with Stepweave.",
    "What are you?": "I am a tiny model that comes with Stepweave.",
    "What can you do?": "I can turn sentences into JSON, sort words and write short stories.",
    "How are you?": "I am fine, thank you. How can I help you?",
    "Thank you": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Goodbye": "Goodbye!",
}


def small_talk(s: Speaker) -> Example:
    prompt = s.pick(list(SMALL_TALK))
    return Example("small_talk", prompt, SMALL_TALK[prompt])


STORY_PROMPTS = (
    "Write a story about {a:animal} named {name}.",
    "Write a story about {a:animal} named {name}.",
    "Write a short story about {a:animal} named {name}.",
    "Write a story about {a:animal} called {name}.",
    "Tell me a story about {a:animal} named {name}.",
    "Tell me a short story about {name} the {animal}.",
    "Please tell a story about {name}, {a:animal}.",
)
STORY_OPENINGS = (
    "Once upon a time, there was a {adj} {animal} named {name}.",
    "Once there was {a:animal} named {name} who lived near the {place}.",
    "In a {adj} town by the {place} lived {a:animal} called {name}.",
)
STORY_WISHES = (
    "{name} loved to play with a {color} {thing}.",
    "Every day, {name} went to the {place} to look for a {thing}.",
    "{name} wanted to find a {color} {thing} more than anything.",
)
STORY_TROUBLES = (
    "One day, the {thing} was gone, and {name} was sad.",
    "One morning, {name} got lost on the way to the {place}.",
    "Then it began to rain, and {name} was cold and alone.",
)
STORY_FRIENDS = (
    "Then {name} met {a:friend_animal} named {friend}.",
    "A {friend_animal} named {friend} heard {name} and came to help.",
    '"Do not worry," said {friend} the {friend_animal}. "I will help you, {name}."',
)
STORY_TURNS = (
    "Together they looked everywhere, and at last they found the {thing}.",
    "{friend} knew the way, and soon they were home.",
    "They shared some {food} and laughed until the sun came out.",
)
STORY_ENDS = (
    "From that day on, {name} and {friend} were best friends.",
    "{name} was happy and thanked {friend} with a big hug.",
    "{name} the {animal} never felt alone again.",
)


def story(s: Speaker) -> Example:
    """A few sentences that keep using the name and the animal of the prompt.

    Names are split by `is_held_out`, animals are not: training has stories of all of them.
    """
    values: dict[str, Json] = {
        "name": s.first(),
        "animal": s.pick(ANIMALS),
        "friend": s.pick(("Eli", "Mia", "Tom", "Rosie", "Pip", "Lulu")),
        "friend_animal": s.pick(ANIMALS[:8]),
        "adj": s.pick(ADJECTIVES[:10]),
        "place": s.pick(PLACES[-10:]),
        "thing": s.pick(("ball", "kite", "bell", "hat", "stone", "lamp")),
        "color": s.pick(COLORS[:6]),
        "food": s.pick(FOODS[:8]),
    }
    beats = [STORY_OPENINGS, STORY_WISHES, STORY_TROUBLES, STORY_FRIENDS, STORY_TURNS, STORY_ENDS]
    if s.chance(0.3):
        del beats[s.pick((1, 2))]
    if s.chance(0.3):
        del beats[-2]
    text = " ".join(fill(s.pick(beat), values) for beat in beats)
    mentions = (str(values["name"]), str(values["animal"]))
    return Example("story", fill(s.pick(STORY_PROMPTS), values), text, mentions)


# Weights of the tasks once training is under way; the README shows this table.
MIX: dict[Task, float] = {
    extract: 62,
    extract_facts: 14,
    extract_list: 5,
    copy: 3,
    lookup: 2,
    to_array: 4,
    story: 6,
    sentiment: 2,
    membership: 0.5,
    reorder: 1,
    uppercase: 0.5,
    number_format: 1,
    date_format: 1.5,
    addition: 0.5,
    small_talk: 1,
}
# Mostly copying: a model that cannot copy gains nothing from harder tasks.
WARM_UP_MIX: dict[Task, float] = {copy: 45, lookup: 10, extract: 35, story: 10}
EXTRACTION: dict[Task, float] = {extract: 8, extract_facts: 1, extract_list: 1}


def examples(
    seed: int, mix: dict[Task, float] | None = None, *, held_out: bool = False
) -> Iterator[Example]:
    """An endless stream, the same for the same arguments."""
    speaker = Speaker(random.Random(seed), held_out)
    mix = MIX if mix is None else mix
    tasks, weights = list(mix), list(mix.values())
    while True:
        yield speaker.random.choices(tasks, weights)[0](speaker)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print examples of the training corpus.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--held-out", action="store_true", help="use only held-out words")
    args = parser.parse_args()
    for _, example in zip(
        range(args.count), examples(args.seed, held_out=args.held_out), strict=False
    ):
        print(
            json.dumps({"task": example.task, "prompt": example.prompt, "answer": example.answer})
        )


if __name__ == "__main__":
    main()

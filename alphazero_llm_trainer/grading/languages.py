"""What the answer reader knows of languages and of models, as tables of data: how an answer is said
and reasoned, scale words and signs, and what hides thinking.

All but the table's keys are parts of patterns, in small letters.
"""

from __future__ import annotations

from typing import NamedTuple


class Language(NamedTuple):
    """How a language says which answer is right.

    answer, option, correct, link: its nouns, what may stand behind them, and "is".
    reason, behind: what begins a reason, and what does so behind a comma alone.
    open: nothing must follow the noun ("always"), or a number or a letter ("marked").
    spaced: words are set apart by spaces.
    """

    answer: str
    option: str
    correct: str
    link: str
    reason: str
    behind: str = "(?!)"
    open: str = ""
    spaced: bool = True


# The languages of MGSM and MMMLU, and others. `(?!)` matches nothing.
LANGUAGES = {
    "en": Language(
        "answer",
        "options?|choices?|letters?",
        r"(?:to|for)\s[^.:\n]{1,80}?",
        "is|are|(?:should|must|would|will|has to|ought to)(?: (?:really|actually|instead|then))? be"
        "|should have been|becomes|equals",
        "because|since(?! [0-9])",
    ),
    "de": Language(
        "antwort",
        "option|wahl|buchstabe|möglichkeit|alternative",
        "",
        "ist|lautet|wäre|(?:müsste|sollte|muss)(?= [^ .]{1,30} (?:sein|lauten))",
        "weil",
        "denn|da",
    ),
    "fr": Language(
        "r[ée]ponse",
        "option|choix|lettre|proposition",
        "correcte|finale?|exacte|juste",
        "est|serait|sera|(?:doit|devrait) être",
        "puisque|parce qu[e'’]|étant donné",
        "car",
    ),
    "es": Language(
        "respuesta|resposta|risposta",  # and Portuguese and Italian
        "opci[óo]n|op[çc][ãa]o|opzione|alternativa|letra|lettera|inciso|scelta",
        "correc?ta|corretta|final[e]?|certa|esatta|giusta",
        "es|é|è|será|sería|seria|sarà|sarebbe|deb(?:e|ería) ser|dev(?:e|eria) ser|de(?:ve|ovrebbe) essere"
        "|dovrebbe essere",
        "porque|perch[eé]|ya que|dado que|puesto que|dato che|debido a",
        "pues|pois|poiché|já que|visto que|uma vez que|in quanto",
    ),
    "nl": Language("antwoord", "optie|keuze", "", "is|luidt|zou zijn", "omdat|aangezien", "want"),
    "sv": Language(
        "svar(?:et)?",
        "alternativ(?:et)?",
        "",
        "är|er|blir|skulle vara",
        "eftersom|därför att|fordi",
        "för|for",
    ),
    "pl": Language(
        "odpowied[zź]|odpowiedzią",
        "opcja|opcją|litera",
        "prawidłowa|poprawna|ostateczna|końcowa",
        "to|jest|brzmi|powinna być",
        "ponieważ|gdyż",
        "bo",
    ),
    "cs": Language(
        "odpověď|odpovědí", "možnost|písmeno", "", "je|zní|by měla být", "protože|neboť"
    ),
    "ro": Language(
        "răspuns(?:ul)?",
        "opțiunea|varianta|litera",
        "corect[ăa]?|final",
        "este|e|ar fi|trebuie să fie",
        "deoarece|pentru că|fiindcă",
        "căci",
    ),
    "fi": Language(
        "vastaus",
        "vaihtoehto|kirjain",
        "",
        "on|olisi|pitäisi olla",
        "koska|sillä",
    ),
    "el": Language(
        "απάντηση", "επιλογή", "", "είναι|θα ήταν|πρέπει να είναι", "επειδή|διότι|αφού", "γιατί"
    ),
    "ru": Language(
        "ответ(?:ом)?",
        "вариант(?:ом)?(?: ответа)?|буква",
        "правильный|верный|окончательный",
        "это|равен|будет|является|должен быть",
        "потому|поскольку|так как",
        "ибо",
        open="marked",
    ),
    "uk": Language(
        "відповідь",
        "варіант|літера",
        "правильна|остаточна",
        "це|дорівнює|буде|має бути",
        "тому що|оскільки",
        "бо",
        open="marked",
    ),
    "vi": Language(
        "đáp (?:án|số)|câu trả lời",
        "lựa chọn|phương án",
        "đúng|cuối cùng|chính xác",
        "là|sẽ là|phải là|nên là",
        "vì|bởi vì|do",
    ),
    "tr": Language(
        "(?:cevap|cevabı|yanıt)",
        "seçenek|şık",
        "",
        "olmalı(?:dır)?|şudur",
        "çünkü|zira",
        open="marked",
    ),
    "id": Language(
        "jawaban(?:nya)?",
        "pilihan|opsi",
        "(?:yang )?(?:benar|tepat)|akhir(?:nya)?",
        "adalah|ialah|seharusnya(?: adalah)?|harus(?:nya)?(?: adalah)?",
        "karena|sebab",
    ),
    "sw": Language(
        "jibu",
        "chaguo|herufi",
        "sahihi|la mwisho|lililo sahihi",
        "ni|lingekuwa|linapaswa kuwa",
        "kwa sababu|kwa kuwa|kwani",
    ),
    "yo": Language(
        "[ìi]d[áa]h[ùu]n",
        "[àa][ṣs]àyàn|lẹ́tà",
        "(?:tí ó |tó )?tọ́|ìkẹyìn",
        "ni|jẹ́|je",
        "nítorí|nitori|torí",
    ),
    "ar": Language(
        "(?:ال)?(?:جواب|إجابة|اجابة)",
        "(?:ال)?(?:خيار|اختيار|حرف)",
        "الصحيحة?|النهائية?",
        "هو|هي|يجب أن (?:ت|ي)كون",
        r"لأن\w*|لان\w*|بسبب|حيث أن",
        open="always",
    ),
    "hi": Language(
        "उत्तर|जवाब",
        "विकल्प|अक्षर",
        "",
        "है|होगा|होना चाहिए",
        "क्योंकि|चूँकि|चूंकि",
        "कारण",
        open="always",
    ),
    "bn": Language(
        "উত্তর(?:টি)?",
        "বিকল্প|অপশন",
        "",
        "হল|হলো|হচ্ছে|হবে|হওয়া উচিত",
        "কারণ|কেননা|যেহেতু",
        open="marked",
    ),
    "te": Language(
        "సమాధానం|జవాబు",
        "ఎంపిక|ఐచ్ఛికం",
        "",
        "అవుతుంది|ఇది",
        "ఎందుకంటే|ఎందుకనగా",
        open="marked",
    ),
    "ja": Language(
        "答え|解答",
        "選択肢",
        "",
        "は|が",
        "なぜなら|なぜかというと|というのは",
        open="always",
        spaced=False,
    ),
    "zh": Language(
        "答案|正解|回答|答",
        "选项|選項|选择|選擇|选|選|项|項",
        "",
        "应该是|應該是|应为|應為|就是|是|为|為",
        "因为|因為|由于|由於",
        open="always",
        spaced=False,
    ),
    "ko": Language(
        "정답|해답|답",
        "선택지|보기|옵션",
        "",
        "은|는|이",
        "왜냐하면|왜냐면",
        open="always",
        spaced=False,
    ),
    "th": Language(
        "คำตอบ",
        "ตัวเลือก|ข้อ",
        r"\s*(?:ที่ถูกต้อง|ที่ถูก|สุดท้าย)",
        "คือ|เป็น|ควรเป็น|น่าจะเป็น|ต้องเป็น",
        "เพราะว่า|เพราะ|เนื่องจาก",
        open="always",
        spaced=False,
    ),
}
# "Is" where a language says it behind the answer.
TAILS = "です|だ|(?:に|と)なります|(?:번)?(?:입니다|이다|이에요|예요)|\\s*(?:है|होगा|হয়|ครับ|ค่ะ)|['’]?[dt][ıiuü]r"
# In front of a letter.
ARTICLES = "the|la|el|le|il|die|der|das|de|het|η|το|(?-i:[ao])"

# Words by what they multiply a number by. "Billion" is the English one.
SCALES = {
    12: "dozen dozens doz dutzend douzaine douzaines docena docenas dúzia dúzias dozzina dozzine дюжина дюжины",
    10**2: "hundred hundreds hundert cientos सौ",
    10
    ** 3: "thousand thousands tausend tsd mille mil mila duizend tusen tisíc tisíce tysiąc tysiące tysięcy tys mii"
    " tuhat tuhatta χιλιάδες тысяча тысячи тысяч тыс тисяча тисячі тисяч тис nghìn ngàn bin ribu elfu ألف آلاف الف"
    " हज़ार हजार হাজার వేలు వేల వెయ్యి",
    10**5: "lakh lakhs lac lacs लाख লাখ লক্ষ లక్ష లక్షల లక్షలు",
    10
    ** 6: "million millions mio mln millionen millón millon millones milhão milhao milhões milhoes milione milioni"
    " miljoen miljon miljoner milion miliony milionów milionů milioane miljoona miljoonaa εκατομμύριο εκατομμύρια"
    " миллион миллиона миллионов млн мільйон мільйони мільйонів triệu milyon juta مليون ملايين मिलियन মিলিয়ন"
    " మిలియన్ mílíọ̀nù",
    10**7: "crore crores करोड़ কোটি కోటి కోట్ల కోట్లు",
    10
    ** 9: "billion billions bn mrd mlrd mld milliarde milliarden milliard milliards miliardo miliardi miljard"
    " miljarder miliard miliardy miliardů miliardów miliarde miljardi miljardia bilhão bilhões bilhoes"
    " δισεκατομμύρια миллиард миллиарда миллиардов млрд мільярд мільярди мільярдів tỷ tỉ milyar miliar bilioni"
    " مليار مليارات अरब बिलियन",
    10
    ** 12: "trillion trillions billionen billón billones trilhão trilhões триллион триллиона триллионов triliun",
    10**15: "quadrillion",
}
# The same of scripts that set no spaces; but 千米 is a kilometre, 百分 per cent, 兆瓦 a megawatt.
JOINED_SCALES = {
    10**2: "百 ร้อย 백",
    10**3: "千 พัน 천",
    10**4: "万 萬 만 หมื่น",
    10**5: "แสน",
    10**6: "ล้าน",
    10**8: "亿 億 억",
    10**12: "兆 조",
}
NO_SCALE = "(?![千百兆][米克瓦卡分赫字焦帕]|조각)"

# In front of a number: its sign. Those of JOINED_SIGNS touch it, or what stands before them.
SIGNS = (
    "minus|menos|moins|meno|минус|мінус|miinus|mínus|eksi|âm|hasi|negatif|negativ[oea]?|négatif|μείον|πλην"
    "|سالب|ناقص|ऋण|ऋणात्मक|माइनस|মাইনাস|ঋণাত্মক|మైనస్|ఋణ|отрицательн[^ ]*"
)
JOINED_SIGNS = "负|負|零下|氷点下|マイナス|마이너스|영하|ลบ"
ZEROS = "0|zero|null|cero|zéro|lo zero|нуля|nul|noll|zera|nulou|nollan|(?:το )?μηδέν|nol|sifuri|صفر|الصفر|không|ศูนย์"
BELOW = (
    "below|under|unter|bajo|sous|(?:en |au-)dessous de|sotto|abaixo de|por debajo de|ниже|нижче|onder|poniżej|pod|sub|alle"
    "|κάτω από|di bawah|chini ya|تحت|dưới|ต่ำกว่า"
)
# "Zero" in front of a number that lies below it (शून्य से 4 नीचे, sıfırın altında 4).
ZEROS_BEFORE = "शून्य|শূন্য|సున్నా|sıfırın|সূন্য"

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS = "ten twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: number for number, word in enumerate(_ONES.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), 1)
}
# What formulas in plain text name.
FUNCTIONS = "arcsin|arccos|arctan|asin|acos|atan|sinh|cosh|tanh|sin|cos|tan|sec|csc|cot|log|ln|exp"
GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|rho|sigma|tau|phi|psi|omega"

_TAG = (
    "(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|seed:think|antthinking|longcat_think"
    "|inner_(?:thoughts?|monologue)|thinking_process|chain_of_thought)"
)
# What opens and what closes thinking, by the families of models that write it.
THINKING = {
    "DeepSeek, Qwen, GLM, Kimi and most": (
        rf"[<◁]\s*{_TAG}\s*[>▷]",
        rf"[<◁]\s*/\s*{_TAG}\s*[>▷]",
    ),
    "Cohere, OpenThinker, Solar": (
        rf"<\|(?:(?:start|begin)_(?:of_)?)?{_TAG}(?:[_:](?:start|begin))?\|>",
        rf"<\|(?:/|end_(?:of_)?){_TAG}\|>|<\|{_TAG}[_:]end\|>",
    ),
    "Mistral": (r"\[THINK\]", r"\[/THINK\]"),
    "gpt-oss": (
        r"<\|channel\|>(?:analysis|commentary)<\|message\|>",
        r"<\|channel\|>final<\|message\|>",
    ),
    "Gemma": (r"<\|channel>thought\b|<unused94>(?:thought\b)?", r"<channel\|>|<unused95>"),
    "Apertus": (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    "Granite": (r"here(?:'s| is) my thought process:", r"here(?:'s| is) my response:"),
}

"""Regular expressions of formats, for strings that stand outside JSON.

What they match is valid; rare spellings are left out.
"""

# Days by the lengths of months, and leap years but those that end a century.
DAY = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
DATE = f"([0-9]{{4}}-({DAY})|[0-9]{{2}}(0[48]|[2468][048]|[13579][26])-02-29)"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
LABEL = "[0-9A-Za-z]([0-9A-Za-z\\-]{0,58}[0-9A-Za-z])?"
HOSTNAME = rf"{LABEL}(\.{LABEL}){{0,3}}"
BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
GROUP = "[0-9A-Fa-f]{1,4}"
SHORT_ADDRESSES = [f"({GROUP}:){{{count}}}(:|(:{GROUP}){{1,{7 - count}}})" for count in range(1, 7)]
CLOCK = "T([0-9]+H([0-9]+M)?([0-9]+S)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
DAYS = "([0-9]+Y([0-9]+M)?([0-9]+D)?|[0-9]+M([0-9]+D)?|[0-9]+D)"

FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}[Tt]{TIME}",
    "duration": f"P({DAYS}({CLOCK})?|{CLOCK}|[0-9]+W)",
    "email": rf"[0-9A-Za-z_+\-]+(\.[0-9A-Za-z_+\-]+){{0,3}}@{HOSTNAME}",
    "hostname": HOSTNAME,
    "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
    "ipv6": "|".join([f"({GROUP}:){{7}}{GROUP}", *SHORT_ADDRESSES, f"::({GROUP}(:{GROUP}){{0,6}})?"]),
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": r"[A-Za-z][0-9A-Za-z+.\-]*:([0-9A-Za-z\-._~:/?#@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+",
}

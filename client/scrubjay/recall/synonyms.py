"""What people say for the same thing, when they tell an agent something and later ask for it.

A question is asked in other words than the answer was told in. These are those words: each line is a
group that may stand for one another; after a colon come the members of a kind, which stand for the
kind and it for them, but not for each other. Only questions are widened with them, never the index.
The months are in other languages, too: a note is found by the day it was written, and that is in English.
"""

from __future__ import annotations

from functools import cache

from .words import ending, number

# One form of a word is enough where the stemmer makes the others of it: decide, decides, decided; but decision.
_GROUPS = """
choose chose chosen choice decide decision pick select settle opt adopt
prefer favour favor favourite favorite like love enjoy adore fond keen rather
dislike hate loathe detest avoid despise
want wish desire need require
live reside home address city town located based moved hometown
job work profession occupation career employed role position trade
employer company firm work employed workplace organisation organization
boss manager supervisor lead head
colleague coworker teammate
client customer buyer
vendor supplier provider
wife spouse husband partner married
husband spouse wife partner married
wedding marriage marry ceremony honeymoon
girlfriend boyfriend partner dating
child children kid son daughter baby toddler twins offspring
son boy child
daughter girl child
parent mother father mum mom dad mama papa
mother mum mom mama
father dad papa
sibling brother sister
grandparent grandmother grandfather grandma grandpa granny
relative family aunt uncle cousin nephew niece
friend buddy pal mate acquaintance
flatmate roommate housemate
neighbour neighbor nextdoor
birthday born birth birthdate turns age old
oldest eldest
youngest smallest
die died death dead passed deceased
funeral burial
allergy intolerant
diet vegetarian vegan meat eat food gluten
vegetarian vegan meat
eat food meal dish consume
drink beverage
breakfast lunch dinner supper meal
restaurant cafe bistro diner
cook recipe bake chef
car vehicle drive automobile
bike bicycle cycle
bus coach tram
train rail railway
plane flight fly airline
trip travel journey vacation holiday visit tour flies
vacation holiday leave trip break
hotel hostel guesthouse accommodation lodging airbnb stay
suitcase luggage baggage
house home building
flat apartment studio condo
rent lease landlord tenant
landlord owner
furniture chair table sofa couch bed desk shelf wardrobe
renovate refit refurbish remodel
kitchen stove oven
bathroom shower toilet bath
faucet tap
garden yard lawn
deadline due latest submit submission
meeting call sync standup appointment conference catchup
daily weekday everyday
schedule calendar timetable agenda plan
plan intend intention going
postpone delay defer moved late
delay late slow
cancel abort scrap
price cost charge fee expensive paid pay euro dollar
fee charge subscription cost
budget afford limit cost money
money cash funds
cheap inexpensive affordable
expensive pricey costly
salary wage pay paid income earn
debt owe unpaid loan outstanding
invoice bill receipt
tax duty
bank account iban
insurance policy
bug error issue problem fault defect crash fail failure broken
fail crash broken break failure
outage downtime incident
fix solve repair resolve mend solution patch
cause reason due
phone telephone number mobile cell reach ring
call ring phone telephone
email mail address
contact reach write call message
message text chat note
reply answer response respond
begin began start kick launch commence
end finish complete stop conclude
finish done complete ready
stop quit cease gave
buy bought purchase order acquire got get
sell sold sale
shop store market supermarket
present gift
sick ill disease unwell fever flu cold
injury hurt broken sprained wound
pain ache sore hurt
doctor physician gp dr
dentist teeth tooth
hospital clinic ward
medicine medication drug pill tablet prescription
therapy therapist treatment counselling psychologist
pregnant pregnancy expecting
sleep asleep bed nap insomnia
tired exhausted weary
weight weigh kilo kg
height tall size
hobby pastime interest enjoys plays collects
sport exercise workout fitness training
gym fitness workout
run jog marathon
swim pool
hike walk trek
music song band
sing singer choir vocal
rehearsal practice practise
concert gig opera show performance
film movie cinema
series show tv television
book novel read
author writer novelist
newspaper paper magazine subscribe subscription
hear listen podcast audio
photo picture image photograph
paint draw art
school class education
study research university degree thesis college student
university college uni campus
course class lesson training enrol workshop
learn study
teach teacher tutor instructor
exam test quiz
graduate degree diploma
language speak fluent spoken tongue
afraid scared fear anxious phobia frightened worried nervous
worry concern anxious
happy glad pleased delighted joy
sad unhappy upset depressed
angry annoyed mad furious
lonely alone
proud pride
stress pressure overwhelmed
goal aim target objective ambition
dream wish hope aspire
reach achieve attain
win won victory
lose lost missing left misplaced
find found discover
forget forgot forgotten
remember recall remind
reminder alert notification
big large huge
small little tiny
quick fast rapid speed
slow sluggish latency lag
new latest recent
old previous former earlier
easy simple
hard difficult tough
important critical vital crucial
urgent asap immediately priority
often frequent regularly twice times
always every
morning dawn
noon midday lunchtime
evening night tonight
night nightly evening
weekend saturday sunday
summer july august june
winter december january february
spring march april
autumn fall october september
wake woke
early soon
password passcode pin code key secret credential
secret password token key credential
pin code
wifi wireless wi
internet network broadband
login log sign authentication auth sso
user account member
permission access role rights
security safe
encrypt cipher
backup copy snapshot
restore recover recovery
data information records
store keep kept save lives
delete remove erase drop
change modify alter edit update
update upgrade version
release launch version ship deploy rollout
deploy deployment ship release rollout
rollback revert undo
host hoster server cloud
server machine host
computer laptop machine pc desktop notebook
screen monitor display
phone smartphone iphone android
app application program
code source program
repository repo git
branch trunk main
review approve
merge pull pr
test suite spec
ci pipeline build
build compile
library dependency package module
backend back server api
frontend front ui client interface
ui interface frontend front design
api endpoint rest graphql
service microservice
architecture design structure
style format convention
format style layout
indent tabs spaces
theme mode appearance dark light
tone style voice manner
short brief terse concise
long detailed verbose lengthy
long takes minutes hours duration last
explain explanation describe
diagram chart graph drawing
document docs manual
document passport certificate paper
ticket issue task
tracker tickets board
task todo chore assignment
project initiative
demo review presentation
present slides talk
team group squad crew
group band club
join member
leave left quit resign
hire recruit
fire dismissed laid
raise increase
grow increase rise
reduce decrease lower cut
memory ram
disk storage drive
cpu processor
monitoring metrics observability
queue broker messaging
index search
query search lookup
load traffic
timeout slow hang
infrastructure infra
cloud provider hosting
domain url website site
website site page web
license licence
contract agreement deal
lawyer attorney solicitor legal
law legal
police officer
government authority
vote election
church mosque temple religion
religion religious faith believe
animal pet
feed fed
vet veterinarian
plant flower
rain rainy weather
weather forecast
sea ocean beach coast
mountain alps peak
river lake
forest wood
country nation
nationality citizen citizenship passport
origin native grew born
grew raised childhood
abroad overseas foreign
border visa
airport terminal gate
seat sit aisle window
ticket fare
street road lane avenue
door entrance gate
floor storey level
room office
office workplace desk
remote home
smoke cigarette tobacco
alcohol drunk sober
party celebration
game play
team club
clothes wear dress
shoe boots sneakers
size fit
colour color
name called
nickname called
title name headline
signature sign
owner owns belong
responsible charge owner lead
help support assist
problem trouble difficulty complaint
complaint complain
idea proposal suggestion
suggest recommend advice advise
agree agreement accept
reject refuse decline
replace swap switch instead migrate
switch change migrate move
compare versus vs
use run
maintain maintenance
tool software
arrive land comes
depart departure leave
deliver delivery shipping parcel
parcel package post
visit guest
invite guest
lift elevator
holiday christmas easter
rubbish trash garbage waste
clean tidy
wash laundry
charge battery
electricity power energy
heat warm
broken damaged
accident crash collision
steal stolen theft
january jan janvier enero gennaio janeiro
february feb fevrier febrero febbraio fevereiro
march mars marz maart marzo marco
april apr avril abril
may mei mayo maggio maio
june jun juni juin junio giugno junho
july jul juillet julio luglio julho
august aug augustus aout agosto
september sep sept septembre septiembre settembre setembro
october oct oktober octobre octubre ottobre outubro
november nov novembre noviembre
december dec dezember decembre diciembre dicembre dezembro
"""

_KINDS = """
database db datastore: postgresql postgres mysql mariadb mongodb mongo sqlite redis oracle
database db datastore: cassandra dynamodb cockroachdb clickhouse duckdb
queue broker messaging: kafka rabbitmq nats sqs celery pulsar
language programming: python rust java javascript typescript golang kotlin ruby swift php scala haskell elixir
language speak: english german french spanish italian portuguese dutch danish swedish polish
language speak: russian chinese japanese korean arabic turkish catalan
framework: react vue svelte angular django flask fastapi rails spring nextjs laravel
frontend ui: react vue svelte angular
backend: django flask fastapi rails node
javascript: react vue svelte angular node typescript
editor ide: vim neovim emacs vscode vs intellij pycharm nano sublime zed helix
os operating: linux windows macos ubuntu debian fedora arch android ios
linux: ubuntu debian fedora arch
browser: chrome firefox safari edge
cloud hosting provider: aws azure gcp hetzner cloudflare heroku digitalocean vercel
infrastructure container: docker kubernetes terraform pulumi ansible helm podman
ci pipeline: jenkins github gitlab circleci
repository vcs: github gitlab bitbucket
tracker ticket: jira linear trello asana youtrack
chat messenger: slack zulip teams discord whatsapp telegram signal matrix mattermost
login authentication: keycloak oauth auth0 okta saml sso password
payment pay checkout: stripe paypal adyen klarna
monitoring: grafana prometheus datadog sentry
cache: redis memcached
storage bucket: s3 minio
secret password: vault bitwarden 1password keepass
model llm ai: gpt claude llama gemini mistral openai anthropic ollama
package manager: pip npm yarn pnpm poetry uv cargo
shell terminal: bash zsh tmux
test: pytest jest junit playwright selenium cypress
pet animal: dog cat hamster rabbit parrot horse goldfish puppy kitten
dog: puppy labrador poodle terrier beagle
cat: kitten tomcat
car vehicle: volkswagen vw toyota bmw audi skoda renault tesla ford honda volvo fiat peugeot
vehicle: car bike motorcycle van truck scooter
allergy: peanut nut pollen lactose gluten shellfish penicillin
food: pizza pasta sushi curry bread cheese meat fish soup salad
fruit: apple banana orange strawberry mango grape
vegetable: carrot tomato potato onion spinach broccoli
herb spice: coriander cilantro basil parsley mint thyme
drink: coffee tea beer wine water juice milk
alcohol: beer wine whisky vodka gin
instrument: guitar piano violin cello flute drums saxophone trumpet bassoon clarinet
music genre: jazz rock pop techno classical metal
sport exercise: football soccer tennis basketball swim run cycling yoga climbing rowing gym
illness disease: flu cold bronchitis diabetes asthma cancer migraine covid
injury: knee ankle fracture
doctor: dentist surgeon dermatologist cardiologist
job profession: nurse teacher engineer developer designer lawyer pilot carpenter accountant
furniture: chair table sofa bed desk shelf
document: passport visa certificate contract invoice licence
day weekday: monday tuesday wednesday thursday friday saturday sunday
month: january february march april may june july august september october november december
season: spring summer autumn winter
colour color: red blue green yellow black white purple orange
city: london paris berlin madrid rome vienna amsterdam lisbon tokyo york
country: germany france spain italy portugal netherlands japan china india canada
currency: euro dollar pound yen
family relative: mother father sister brother wife husband aunt uncle cousin
transport: bus train tram bike car ferry plane
jewellery jewelry: ring necklace bracelet
"""


@cache
def _table() -> dict[int, tuple[int, ...]]:
    """Made when the first question is asked, not when the module is loaded."""
    found: dict[int, dict[int, None]] = {}

    def link(words: list[int], others: list[int]) -> None:
        for word in words:
            found.setdefault(word, {}).update(dict.fromkeys(other for other in others if other != word))

    for line in _GROUPS.strip().splitlines():
        group = [number(word) for word in line.split()]
        link(group, group)
    for line in _KINDS.strip().splitlines():
        kind, _, members = line.partition(":")
        kinds, known = ([number(word) for word in part.split()] for part in (kind, members))
        link(kinds, kinds)
        link(kinds, known)
        link(known, kinds)
    return {word: tuple(others) for word, others in found.items()}


def synonyms(word: int) -> tuple[int, ...]:
    """The words that may stand for it, as the index numbers them, and all that may be compounds which end in it."""
    others = _table().get(word, ())
    return (*others, ending(word)) if word > 0 and ending(word) else others

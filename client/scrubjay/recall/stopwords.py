"""What sentences are made of, and what says nothing about them.

Where notes in one language are few among many, its articles and question words are rare, and rare words would
tell the most. Only questions are asked without those of other languages, and only if something is left: NAS, CES and
Uno are found by their names. Left out is what means much in English: die, war, van, met, pour, comment, LA, CI, MIT.
"""

from __future__ import annotations

# d, ll, m, re, s, t, ve are what an apostrophe leaves over.
_ENGLISH = """
a about after again all also am an and any are as at be because been before being between both but by can could d did
do does doing don down during each few for from further had has have having he her here hers herself him himself his
how i if in into is it its itself just let ll m me more most my myself no nor not now of off on once only or other our
ours out over own re s same she should so some such t than that the their theirs them themselves then there these they
this those through to too under until up us ve very was we were what when where which while who whom why will with
would you your yours yourself
"""
_GERMAN = """
aber als auch auf aus bei beim bis bist das dass dein deine dem den der des dich du ein eine einem einen einer eines es
euch fuer habe haben hast hatte ich ihm ihn ihr ihre im ins ist kein keine mein meine mich mir nach nicht noch nur
oder sehr sein seine sich sie sind uber ueber um und uns unser unsere vom von wann warum was welche welchem welchen
welcher welches wem wen wenn wer werden wie wird wo woher wohin wurde zu zum zur
"""
_DUTCH = """
aan bij dat de deze dit een en haar heeft het hij ik jij jouw maar mijn naar niet ook te uit voor waar waarom wanneer
wat welke wie wij zij zijn
"""
_FRENCH = """
au aux avec ce ces cet cette chez dans de des du elle elles en est et etait il ils j je l le les leur leurs lui ma
mais mes moi ne nos notre nous ou par pas pourquoi qu quand que quel quelle quelles quels qui quoi sa ses sont sur ta
tes toi tu une vos votre vous
"""
_SPANISH = """
como con cual cuales cuando cuanta cuantas cuanto cuantos de del donde el ella ellas ellos en eres es esa ese eso esta
estan estas este esto fue ha las le les lo los mas mi mis muy nos nosotros para pero por porque que quien quienes se
ser si su sus te tiene tu una unas unos y ya yo
"""
_ITALIAN = """
agli alla alle allo anche che chi con cosa cui da dal dalla degli dei del della delle dello di gli ha hai hanno ho il
lo loro ma mi mio nei nel nella nelle non per perche piu quale quali quando sei si siamo sono sta stato su sua sul
sulla suo ti tra tuo una uno
"""
_PORTUGUESE = """
ao aos com como da das dela dele e ela ele eles em essa esse esta este foi isso mais mas meu meus minha na nao nas nos
nossa nosso numa onde para pela pelo por quais qual quando que quem se seu seus sua suas tem uma umas voce
"""
_RUSSIAN = """
а без бы был была были было быть в вам вас во вот все вы где да для до его ее если есть еще же за и из или им их к как
какая какие какои какую когда кого кто ли мне мои моя мы на над нас наш не нет ни но о об он она они от по под при
с со так там то тоже тут ты у уже чеи что чтобы чье чья эта эти это этот я
"""
_ALL = (_ENGLISH, _GERMAN, _DUTCH, _FRENCH, _SPANISH, _ITALIAN, _PORTUGUESE, _RUSSIAN)
ENGLISH = frozenset(_ENGLISH.split())
STOPWORDS = frozenset(word for language in _ALL for word in language.split())

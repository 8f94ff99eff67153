"""A workshop: a shared folder on the site, in which each learner has a seat and the teacher sees
who needs help.

Learners write only their own seat, and no one runs anything in another's account: what a teacher
does is an offer, which the learner takes or not. Imports course/, jupyter_job/ and the packages
below.
"""

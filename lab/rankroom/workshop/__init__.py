"""A workshop: a shared folder of the site, in which each learner has a seat and the teacher sees
who needs help.

Learners write their own seat only, and no one runs anything in another's account: what a teacher
does is an offer, which the learner takes or not. Imports course/, jupyter_job/ and the rooms below.
"""

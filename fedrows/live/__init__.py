"""The live page: follows runs, comparisons, studies and deployments through the files they write.

`followed` reads the folders, `server` streams what is new to browsers, `page.html`, `live.css` and
`live.js` show it. It runs in a process of its own, which a run knows nothing of.
"""

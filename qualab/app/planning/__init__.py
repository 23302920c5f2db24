"""What a plan's items can prove before a run; `qualab.app.planning.suite` joins the parts."""

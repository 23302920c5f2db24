"""What a plan's items can prove before a run; `qualab.planning.suite` joins the parts."""

"""Planning: what items can prove before a run; `qualab.planning.suite` joins the parts."""
